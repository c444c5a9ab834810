"""The table of results: which rows count, how they stand to each other, and the means that a reader
chooses by.
"""

import json
import math
from pathlib import Path

import pytest
from moebench.core import paths
from moebench.core.errors import UserError
from moebench.operators.workloads import recorded_bound
from moebench.packing.fingerprint import fingerprint
from moebench.results import measurements, summary, trace_files
from recorded import DEFAULT, NAME, RECORDS, solution, trace, trace_set, workload, write

FAST = {1: 0.5, 7: 1.0, 80: 4.0, 901: 10.0, 14107: 16.0}
SLOW = {1: 1.0, 7: 2.0, 80: 2.0, 901: 20.0, 14107: 20.0}


def two(**changes):
    """fast and slow on five workloads, the reference always 20 ms; slow wins at T=80 alone."""
    return [
        trace(n, t, ms, 20.0, **changes)
        for n, of in (("fast", FAST), ("slow", SLOW))
        for t, ms in of.items()
    ]


def loaded(root, traces, **more):
    found, warnings = measurements.load([trace_set(root, traces, **more)])
    assert warnings == []
    return found


def at(found, solution, tokens):
    (row,) = found[(found.solution == solution) & (found.tokens == tokens)].itertuples()
    return row


def test_means_against_statistics_computed_apart(tmp_path):
    outside = write(
        tmp_path / "traces.jsonl", two()
    )  # a file outside any data set is of this repository's workloads
    found = summary.by_solution(measurements.load([outside])[0]).loc["fast"]
    speedups = [20 / ms for ms in FAST.values()]
    assert found.score == pytest.approx(sum(speedups) / 5)
    over_fastest = [ms / min(ms, SLOW[t]) for t, ms in FAST.items()]
    assert found.over_fastest == pytest.approx(math.prod(over_fastest) ** (1 / 5))
    bounds = [recorded_bound(NAME, workload(t), None).ms for t in FAST]
    over_bound = [ms / bound for ms, bound in zip(FAST.values(), bounds, strict=True)]
    assert found.over_bound == pytest.approx(math.prod(over_bound) ** (1 / 5))
    assert found.mean_ms == pytest.approx(sum(FAST.values()) / 5)
    assert (found.passed_relaxed, found.workloads, found.complete) == (5, 19, False)


def test_the_row_of_a_trace_has_what_the_trace_says(tmp_path):
    found = loaded(tmp_path / "set", two())
    row = at(found, "fast", 80)
    assert (row.ms, row.reference_ms, row.speedup, row.matched) == (4.0, 20.0, 5.0, 0.99)
    assert (row.tolerance, row.clock, row.hardware, row.protocol) == (
        "relaxed",
        "events",
        "NVIDIA H200",
        "once",
    )
    assert (row.geometry, row.definition, row.source, row.passed) == ("full", NAME, "current", True)
    assert (row.matched_relaxed, math.isnan(row.matched_default)) == (0.99, True)
    assert row.place.endswith(":3") and math.isnan(
        row.bound_ms
    )  # the routing's blobs are not in that data set
    row = at(measurements.load([write(tmp_path / "t.jsonl", two())])[0], "fast", 80)
    assert row.bound_ms == recorded_bound(NAME, workload(80), None).ms
    assert row.over_bound == pytest.approx(4.0 / row.bound_ms)
    assert row.over_fastest == 2.0 and not row.level and at(found, "slow", 80).level
    theirs = measurements.load([write(tmp_path / "theirs.jsonl", two(protocol="once dataset=x"))])[
        0
    ]
    assert theirs.bound_ms.isna().all()


def test_latencies_within_three_percent_are_level(tmp_path):
    times = {"fast": 1.0, "slow": 1.03, "far": 1.031}
    found = loaded(
        tmp_path, [trace(name, 1, ms) for name, ms in times.items()], solutions=tuple(times)
    )
    assert dict(zip(found.solution, found.level, strict=True)) == {
        "fast": True,
        "slow": True,
        "far": False,
    }


def all_workloads(name, ms, **changes):
    return [trace(name, w.axes["seq_len"], ms, 20.0, **changes) for w in RECORDS]


def test_only_a_solution_that_passed_everything_is_recommended(tmp_path):
    good = [*all_workloads("fast", 1.0), *all_workloads("slow", 2.0)]
    assert summary.to_use(loaded(tmp_path / "good", good)) == "fast"
    wrong = [t for t in good if (t.solution, t.workload.axes["seq_len"]) != ("fast", 901)]
    wrong.append(trace("fast", 901, status="INCORRECT_NUMERICAL", matched=0.5))
    found = loaded(tmp_path / "wrong", wrong)
    assert summary.to_use(found) == "slow"
    assert not summary.by_solution(found).complete["fast"] and at(found, "slow", 901).level


def test_what_to_use_at_another_tolerance_passed_there_too(tmp_path):
    both = [
        *all_workloads("fast", 1.0),
        *all_workloads("slow", 2.0),
        *all_workloads("slow", 2.0, tolerance=DEFAULT),
    ]
    found = loaded(tmp_path, both)
    assert summary.to_use(found) == "fast" and summary.to_use(found, "default") == "slow"
    assert summary.to_use(found, "contest") is None
    assert summary.ahead(found, "fast").to_dict() == {"slow": pytest.approx(2.0)}


def test_stale_rows_are_marked_and_left_out(tmp_path):
    """A figure of an earlier source says nothing about the one that is there."""
    traces = [t for t in two() if t.solution == "slow"]
    traces += [
        trace("fast", t, ms, 20.0, sha1="before" if t == 1 else None) for t, ms in FAST.items()
    ]
    found = loaded(tmp_path, traces)
    assert at(found, "fast", 1).source == "stale" and not at(found, "fast", 1).counts
    assert at(found, "slow", 1).over_fastest == 1
    means = summary.by_solution(found).loc["fast"]
    assert (means.passed_relaxed, means.stale_relaxed, means.timed) == (4, 1, 4)
    assert means.score == pytest.approx(sum(20 / ms for t, ms in FAST.items() if t != 1) / 4)


def test_of_several_traces_the_newest_of_the_current_source_counts(tmp_path):
    traces = [
        trace("fast", 1, 3.0, day="2026-01-01"),
        trace("fast", 1, 2.0, day="2026-01-02"),
        trace("fast", 1, 1.0, day="2026-01-03", sha1="before"),
    ]
    assert at(loaded(tmp_path, traces), "fast", 1).ms == 2.0


def test_another_protocol_or_versions_are_not_set_in_relation(tmp_path):
    """Most rows decide which condition is compared; the others stay in the table, without a
    rank.
    """
    odd = [trace("slow", 1, 0.1, protocol="twice"), trace("far", 1, 0.1, torch="2.9")]
    found = loaded(
        tmp_path,
        [*(t for t in two() if t.solution == "fast"), *odd],
        solutions=("fast", "slow", "far"),
    )
    assert at(found, "fast", 1).level and at(found, "fast", 1).over_fastest == 1
    for name in ("slow", "far"):
        row = at(found, name, 1)
        assert not row.comparable and not row.counts and math.isnan(row.over_fastest)


def test_tolerances_clocks_and_gpus_are_rows_of_their_own(tmp_path):
    traces = [
        trace("fast", 1, 1.0),
        trace("fast", 1, 2.0, tolerance=DEFAULT),
        trace("fast", 1, 3.0, hardware="NVIDIA H100"),
        trace("fast", 1, 4.0, protocol="once clock=gpu"),
    ]
    found = loaded(tmp_path, traces)
    assert sorted(found.ms) == [1.0, 2.0, 3.0, 4.0] and found.level.all()
    other = found[found.hardware == "NVIDIA H100"].iloc[0]
    assert math.isnan(other.bound_ms) and found[found.clock == "gpu"].ms.item() == 4.0


def test_an_untimed_run_counts_for_correctness_alone(tmp_path):
    found = loaded(tmp_path, [trace("fast", 1, 0)])
    row = at(found, "fast", 1)
    assert math.isnan(row.ms) and row.passed and not row.counts
    assert summary.by_solution(found).passed_relaxed["fast"] == 1


def test_sources_that_are_gone_changed_or_from_elsewhere(tmp_path):
    here = trace_set(
        tmp_path / "set", [trace("fast", 1), trace("gone", 1), trace("slow", 1, solution_sha1="x")]
    )
    states = dict(zip(*measurements.load([here])[0][["solution", "source"]].values.T, strict=True))
    assert states["fast"] == "current" and states["gone"] == "stale"
    empty = trace_set(tmp_path / "empty", [trace("fast", 1)], solutions=())
    assert measurements.load([empty])[0].source.item() == "unknown"


def test_a_comment_leaves_traces_of_another_data_set_current(tmp_path):
    """By the fingerprint alone, as FIB's hash is of every byte."""
    own = fingerprint(solution("fast"))
    found = loaded(
        tmp_path, [trace("fast", 1, sha1="x", source_fingerprint=own), trace("slow", 1, sha1="x")]
    )
    assert (at(found, "fast", 1).source, at(found, "slow", 1).source) == ("current", "stale")


def test_broken_lines_are_named_and_the_rest_is_read(tmp_path):
    file = write(tmp_path / "t.jsonl", [trace("fast", 1)])
    with file.open("a") as out:
        out.write('{"definition": 3}\nhalf a li')
    found, warnings = measurements.load([file])
    assert len(found) == 1 and [":2:" in warnings[0], ":3:" in warnings[1]] == [True, True]


def test_traces_of_any_version_are_read_and_keep_what_is_unknown(tmp_path):
    """A user would miss: the public data set's traces, in folders by author, and what a newer FIB
    writes into one.
    """
    new, old = (
        json.loads(each.model_dump_json()) for each in (trace("fast", 1), trace("slow", 7, 2.0))
    )
    new["evaluation"] |= {"status": "REFUSED", "judge": 2}
    new["evaluation"]["performance"]["stdev_ms"] = 0.5
    del old["workload"]["uuid"], old["evaluation"]["environment"]["libs"]["tolerance"]
    old["evaluation"]["environment"]["device"] = (
        old["evaluation"]["environment"].pop("hardware") + " NVL"
    )
    workload_alone = old | {"solution": "", "evaluation": {}}
    file = write(trace_set(tmp_path, []) / "traces" / "alice" / "moe" / f"{NAME}.jsonl", [])
    file.write_text("\n".join(map(json.dumps, (new, old, workload_alone))))
    found = measurements.load([tmp_path])[0]
    assert (at(found, "fast", 1).status, at(found, "fast", 1).others) == (
        "REFUSED",
        {"judge": 2, "stdev_ms": 0.5},
    )
    theirs = found[found.hardware == "NVIDIA H200 NVL"]
    assert len(theirs) == len(found) - 1 == 1 and theirs.uuid.notna().all()
    assert summary.by_solution(theirs).mean_ms.to_dict() == {"slow": 2.0}, "by whatever tolerance"
    file.write_text(json.dumps(new))
    trace_files.merge(file, [trace("fast", 57)])
    assert "stdev_ms" in file.read_text() and len(trace_files.load(file)) == 2


@pytest.mark.parametrize("content", ["", '{"a": 1}\n', None])
def test_nothing_to_read_is_an_error_that_names_the_path(tmp_path, content):
    file = tmp_path / "t.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match="t.jsonl"):
        measurements.load([file])


def test_merging_keeps_the_newest_of_each_protocol_of_the_newest_source(tmp_path):
    file = tmp_path / "t.jsonl"
    trace_files.merge(
        file, [trace("fast", 1, 1.0, day="2026-01-01"), trace("fast", 1, 2.0, protocol="short")]
    )
    trace_files.merge(file, [trace("fast", 1, 3.0, day="2026-01-02"), trace("slow", 1, 4.0)])
    trace_files.merge(file, [trace("fast", 1, 9.0, day="2025-12-31")])
    assert sorted(t.evaluation.performance.latency_ms for t in trace_files.load(file)) == [
        2.0,
        3.0,
        4.0,
    ]
    trace_files.merge(file, [trace("fast", 1, 5.0, day="2026-01-03", sha1="edited")])
    assert sorted(t.evaluation.performance.latency_ms for t in trace_files.load(file)) == [4.0, 5.0]
    trace_files.merge(file, [trace("fast", 1, 6.0, tolerance=DEFAULT), trace("fast", 7, 7.0)])
    assert len(trace_files.load(file)) == 4


def test_every_figure_is_tied_to_a_source():
    """By both hashes: so a comment, or a file that moves, leaves it current."""
    found, warnings = measurements.load([paths.ROOT, Path(paths.GPU_CLOCK)])
    assert warnings == [] and set(found.source) <= {"current", "stale"}
    assert found.source_sha1.notna().all() and found.source_fingerprint.notna().all()

"""The table of results: which rows count, how they stand to each other, and where they are from.

Traces with figures of their own are written, beside the sources of the solutions "fast" and "slow",
and loaded.
"""

import json
import math

import pytest
from moebench.core import paths
from moebench.operators.workloads import recorded_bound
from moebench.results import measurements
from moebench.results.trace_rows import rows_from
from moebench.submission.runs import median_runs
from recorded import DEFAULT, NAME, trace, trace_set, workload, write

FAST = {1: 0.5, 7: 1.0, 80: 4.0, 901: 10.0, 14107: 16.0}
SLOW = {1: 1.0, 7: 2.0, 80: 2.0, 901: 20.0, 14107: 20.0}
ONE_CALL = "warmup=1 iterations=1 trials=1"


def two_solutions(**changes):
    """Return traces of fast and slow on five workloads; slow is faster at T=80 alone."""
    traces = []
    for name, times in (("fast", FAST), ("slow", SLOW)):
        for tokens, ms in times.items():
            traces.append(trace(name, tokens, ms, 20.0, **changes))
    return traces


def row_at(rows, name, tokens):
    is_cell = (rows.solution == name) & (rows.tokens == tokens)
    (row,) = rows[is_cell].itertuples()
    return row


def test_a_row_has_what_the_trace_says(load):
    row = row_at(load(*two_solutions()), "fast", 80)
    expected = {
        "ms": 4.0,
        "reference_ms": 20.0,
        "speedup": 5.0,
        "matched": 0.99,
        "matched_relaxed": 0.99,
        "tolerance": "relaxed",
        "clock": "events",
        "hardware": "NVIDIA H200",
        "geometry": "full",
        "definition": NAME,
        "protocol": "once",
        "source": "current",
        "passed": True,
    }
    assert {name: getattr(row, name) for name in expected} == expected
    assert math.isnan(row.matched_default)
    assert row.place.endswith(":3")


def test_the_bound_of_this_repositorys_workload_is_known_outside_any_data_set(tmp_path):
    file = write(tmp_path / "t.jsonl", two_solutions())
    rows, _ = measurements.load([file])
    row = row_at(rows, "fast", 80)
    bound = recorded_bound(NAME, workload(80), None)
    assert row.bound_ms == bound.ms
    assert row.over_bound == pytest.approx(4.0 / bound.ms)


def test_the_bound_is_unknown_without_the_routing(load, tmp_path):
    """The data set lacks the tensors; a run on another data set had other tensors."""
    assert load(*two_solutions()).bound_ms.isna().all()

    elsewhere = two_solutions(protocol="once dataset=x")
    file = write(tmp_path / "t.jsonl", elsewhere)
    rows, _ = measurements.load([file])
    assert rows.bound_ms.isna().all()


def test_the_fastest_of_a_workload_is_tied_and_the_others_say_by_how_much_they_are_not(
    load,
):
    rows = load(*two_solutions())
    fast = row_at(rows, "fast", 80)
    assert fast.over_fastest == 2.0
    assert not fast.tied
    assert row_at(rows, "slow", 80).tied


def test_single_runs_within_five_percent_are_tied_where_nothing_was_repeated(load):
    times = {"fast": 1.0, "slow": 1.049, "far": 1.051}
    traces = [trace(name, 1, ms) for name, ms in times.items()]
    rows = load(*traces, solutions=tuple(times))
    tied = rows.set_index("solution").tied.to_dict()
    assert tied == {"fast": True, "slow": True, "far": False}


@pytest.mark.parametrize(
    ("protocol", "is_ranked"),
    [
        (ONE_CALL, False),
        (f"{ONE_CALL} clock=gpu", False),
        ("warmup=10 iterations=20 trials=1", True),
        ("warmup=1 iterations=1 trials=3", True),
        ("of somebody else", True),
    ],
)
def test_a_single_call_is_never_the_fastest(load, protocol, is_ranked):
    rows = load(trace("fast", 1, 1.0, protocol=protocol))
    row = row_at(rows, "fast", 1)
    assert row.ms == 1.0
    assert row.counts
    assert row.tied == is_ranked
    assert math.isnan(row.over_fastest) != is_ranked


def test_stale_rows_are_marked_and_left_out(load):
    """A figure of an earlier source says nothing about the one that is there."""
    rows = load(trace("slow", 1, 1.0), trace("fast", 1, 0.5, sha1="before"))
    stale = row_at(rows, "fast", 1)
    assert stale.source == "stale"
    assert not stale.counts
    assert row_at(rows, "slow", 1).over_fastest == 1


def runs(name, tokens, *times, **changes):
    """Return a run of the same cell for each time, on one day after the other."""
    traces = []
    for day, ms in enumerate(times, 1):
        traces.append(trace(name, tokens, ms, day=f"2026-01-{day:02}", **changes))
    return traces


def test_of_several_runs_of_the_current_source_the_median_counts(load):
    rows = load(
        *runs("fast", 1, 3.0, 2.0, 2.5),
        trace("fast", 1, 1.0, day="2026-01-09", sha1="before"),
        trace("fast", 1, 9.0, day="2026-01-01", protocol="shorter"),
    )
    row = row_at(rows, "fast", 1)
    assert row.ms == 2.5
    assert row.ms_low == 2.0
    assert row.ms_high == 3.0
    assert row.runs == 3
    assert row.timestamp[:10] == "2026-01-03"
    assert row.range_from == "runs"
    assert row.speedup == pytest.approx(10 / 2.5)


@pytest.mark.parametrize(
    ("times", "median"),
    [
        ((3.0,), 3.0),
        ((3.0, 1.0), 3.0),
        ((3.0, 1.0, 2.0), 2.0),
    ],
)
def test_the_run_that_stands_for_all_is_one_of_them(times, median):
    rows = rows_from([*runs("fast", 1, *times), *runs("fast", 7, 9.0)])
    chosen = median_runs(rows).set_index("tokens").ms
    assert chosen.to_dict() == {1: median, 7: 9.0}


def test_a_run_that_failed_stands_for_all():
    failure = trace("fast", 1, status="RUNTIME_ERROR")
    rows = rows_from([*runs("fast", 1, 1.0, 2.0), failure])
    assert median_runs(rows).status.item() == "RUNTIME_ERROR"


@pytest.mark.parametrize(
    ("other", "range_from", "high"),
    [
        ((), "trials", 1.02),
        ((1.0, 1.21), "other cells", 1.1),
        ((1.0, 1.01), "other cells", 1.02),
    ],
)
def test_the_trials_of_a_single_run_say_how_wide_its_range_is_at_least(
    load, other, range_from, high
):
    single = trace("fast", 1, 1.0, trials_ms="0.98 1.019592 1.0")
    row = row_at(load(single, *runs("fast", 7, *other)), "fast", 1)
    assert row.range_from == range_from
    assert row.ms_high == pytest.approx(high)


def test_one_run_that_failed_fails_the_cell(load):
    failure = trace("fast", 1, status="INCORRECT_NUMERICAL", matched=0.5)
    row = row_at(load(failure, *runs("fast", 1, 1.0, 2.0)), "fast", 1)
    assert row.status == "INCORRECT_NUMERICAL"
    assert row.matched == 0.5
    assert not row.passed
    assert not row.counts
    assert math.isnan(row.ms)


@pytest.mark.parametrize(
    ("other", "is_tied"), [((1.09, 1.3), True), ((1.11, 1.3), False)]
)
def test_solutions_are_tied_where_the_ranges_of_their_runs_overlap(
    load, other, is_tied
):
    rows = load(*runs("fast", 1, 1.0, 1.1), *runs("slow", 1, *other))
    assert row_at(rows, "fast", 1).tied
    assert row_at(rows, "slow", 1).tied == is_tied


def test_a_single_run_has_the_widest_range_of_the_nearest_repeated_cells(load):
    """Of the same solution on the same GPU, by the same protocol."""
    rows = load(
        *runs("fast", 7, 1.0, 1.21),
        *runs("slow", 7, 1.0, 1.4),
        *runs("slow", 901, 1.0, 1.01),
        *runs("fast", 1, 1.0, 4.0, hardware="another"),
        trace("fast", 1, 1.1),
        trace("slow", 80, 1.0),
    )
    single = row_at(rows[rows.hardware == "NVIDIA H200"], "fast", 1)
    assert single.ms_low == pytest.approx(1.0)
    assert single.ms_high == pytest.approx(1.21)
    assert single.runs == 1
    assert single.range_from == "other cells"
    assert row_at(rows, "slow", 80).ms_high == pytest.approx(1.01**0.5)


@pytest.mark.parametrize("change", [{"protocol": "twice"}, {"torch": "2.9"}])
def test_another_protocol_or_version_has_no_rank(load, change):
    """Most rows decide which condition is compared; the others stay in the table."""
    traces = [trace("fast", tokens, ms) for tokens, ms in FAST.items()]
    rows = load(*traces, trace("slow", 1, 0.1, **change))

    assert row_at(rows, "fast", 1).over_fastest == 1
    other = row_at(rows, "slow", 1)
    assert other.ms == 0.1
    assert not other.comparable
    assert not other.counts
    assert math.isnan(other.over_fastest)


def test_the_condition_of_most_cells_is_compared_however_often_others_were_run(load):
    often = runs("fast", 1, 1.0, 1.1, 1.2, 1.3, protocol="short")
    rows = load(*often, *runs("fast", 7, 2.0), *runs("slow", 7, 2.0))
    assert row_at(rows, "fast", 7).comparable
    assert not row_at(rows, "fast", 1).comparable


def test_tolerances_clocks_and_gpus_are_rows_of_their_own(load):
    rows = load(
        trace("fast", 1, 1.0),
        trace("fast", 1, 2.0, tolerance=DEFAULT),
        trace("fast", 1, 3.0, hardware="NVIDIA H100"),
        trace("fast", 1, 4.0, protocol="once clock=gpu"),
    )
    assert sorted(rows.ms) == [1.0, 2.0, 3.0, 4.0]
    assert rows.tied.all()
    assert rows[rows.clock == "gpu"].ms.item() == 4.0
    assert rows[rows.hardware == "NVIDIA H100"].bound_ms.isna().all()


def test_an_untimed_run_counts_for_correctness_alone(load):
    row = row_at(load(trace("fast", 1, 0)), "fast", 1)
    assert math.isnan(row.ms)
    assert row.passed
    assert not row.counts


def test_traces_of_a_newer_fib_are_read_and_keep_what_is_unknown(tmp_path):
    """The public data set's traces lie in folders by author; some are a workload alone."""
    newer = trace("fast", 1).model_dump(mode="json")
    evaluation = newer["evaluation"]
    evaluation |= {"status": "REFUSED", "judge": 2}
    evaluation["performance"]["stdev_ms"] = 0.5
    workload_alone = newer | {"solution": None, "evaluation": None}

    root = trace_set(tmp_path, [])
    file = write(root / "traces" / "alice" / "moe" / f"{NAME}.jsonl", [])
    lines = [json.dumps(newer), json.dumps(workload_alone)]
    file.write_text("\n".join(lines))
    rows, warnings = measurements.load([root])
    assert warnings == []

    row = row_at(rows, "fast", 1)
    assert row.status == "REFUSED"
    assert row.others == {"judge": 2, "stdev_ms": 0.5}


def test_a_trace_of_another_format_is_left_out_and_named(tmp_path):
    """As FIB once wrote them, with a device in place of the hardware."""
    old = trace("slow", 7, 2.0).model_dump(mode="json")
    environment = old["evaluation"]["environment"]
    environment["device"] = environment.pop("hardware")

    root = trace_set(tmp_path, [trace("fast", 1)])
    write(root / "traces" / "old.jsonl", []).write_text(json.dumps(old))
    rows, (warning,) = measurements.load([root])
    assert len(rows) == 1
    assert "old.jsonl:1" in warning
    assert "hardware" in warning


def test_every_figure_is_tied_to_a_source():
    """By both hashes: so a comment, or a file that moves, leaves it current."""
    rows, warnings = measurements.load([paths.ROOT, paths.GPU_CLOCK])
    assert warnings == []
    assert set(rows.source) <= {"current", "earlier", "stale"}
    assert rows.source_sha1.notna().all()
    assert rows.source_fingerprint.notna().all()

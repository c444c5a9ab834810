"""What traces say side by side: which figures count, which are kept apart, and in which forms they come."""

import csv
import io
import json
import math
import statistics

import pytest
from harness import cli
from harness.commands import compare
from harness.core import paths
from harness.core.errors import UserError
from harness.core.provenance import Provenance
from harness.packing import pack
from harness.report import comparison as report
from harness.results import comparison, staleness, summary
from recorded import DEFAULT, NAME, RELAXED, trace, trace_set, write

FAST = {1: 0.5, 7: 1.0, 80: 4.0, 901: 10.0, 14107: 16.0}
SLOW = {1: 1.0, 7: 2.0, 80: 2.0, 901: 20.0, 14107: 20.0}


def two(**changes):
    """fast and slow on five workloads, the reference always 20 ms; slow wins at T=80 alone."""
    return [trace(n, t, ms, 20.0, **changes) for n, of in (("fast", FAST), ("slow", SLOW)) for t, ms in of.items()]


def only_group(root, traces, **options):
    (section,) = comparison.build([trace_set(root, traces)], **options).sections
    (group,) = section.groups
    return group


def row(group, seq_len):
    return next(row for row in group.rows if row.workload.seq_len == seq_len)


def level(group, seq_len):
    return [name for name, cell in row(group, seq_len).cells.items() if cell.level]


def test_means_and_spread(tmp_path):
    """The figures that a reader chooses by, against statistics computed apart."""
    group = only_group(tmp_path, two())
    found = group.total.of("fast")
    speedups = [20 / ms for ms in FAST.values()]
    assert found.mean == pytest.approx(sum(speedups) / 5)
    over_fastest = [ms / min(ms, SLOW[t]) for t, ms in FAST.items()]
    assert found.over_fastest == pytest.approx(math.prod(over_fastest) ** (1 / 5))
    assert (found.median, found.least, found.greatest) == (statistics.median(speedups), min(speedups), max(speedups))
    deviation = math.sqrt(sum((s - found.mean) ** 2 for s in speedups) / 5)
    assert found.variation == pytest.approx(deviation / found.mean)
    assert found.mean_ms == pytest.approx(sum(FAST.values()) / 5)
    assert (found.passed, found.workloads, found.level, group.total.of("slow").level) == (5, 19, 4, 1)
    assert level(group, 80) == ["slow"] and level(group, 901) == ["fast"]


def test_workloads_are_ordered_by_tokens_and_all_there(tmp_path):
    """A workload that nobody ran must be seen to be missing."""
    group = only_group(tmp_path, two())
    lengths = [row.workload.seq_len for row in group.rows]
    assert len(lengths) == 19 and lengths == sorted(lengths)
    assert row(group, 14).cells == {}


def test_regimes_split_at_16_100_and_1000(tmp_path):
    group = only_group(tmp_path, two())
    counts = {s.regime.name: s.of("fast").workloads for s in group.regimes}
    assert counts == {"T <= 16": 5, "17 to 100": 11, "101 to 1000": 1, "over 1000": 2}
    assert group.regimes[0].of("fast").mean == pytest.approx((20 / 0.5 + 20 / 1.0) / 2)
    limits = [(r.low, r.high) for r in summary.REGIMES]
    assert limits == [(0, 16), (17, 100), (101, 1000), (1001, None)]


def test_only_a_solution_that_passed_everything_is_recommended(tmp_path):
    """A wrong answer on one workload must not be hidden behind the best mean."""
    traces = two()
    wrong = trace("fast", 901, status="INCORRECT_NUMERICAL", matched=0.5)
    group = only_group(tmp_path, [t for t in traces if t.workload.uuid != wrong.workload.uuid or t.solution != "fast"])
    assert group.regimes[2].best == ["slow"]
    traces = [t for t in traces if (t.solution, t.workload.uuid) != ("fast", wrong.workload.uuid)] + [wrong]
    group = only_group(tmp_path, traces)
    assert group.regimes[2].of("fast").failed == 1 and level(group, 901) == ["slow"]
    assert group.regimes[2].best == ["slow"] and group.total.best == []


def test_latencies_within_three_percent_are_level(tmp_path):
    """A reader must not choose by a run's scatter, nor by the score, which T = 1 decides by a few microseconds."""

    def few(slow_at_1):
        latencies = {"fast": (0.05, 1.0), "slow": (slow_at_1, 1.02), "far": (0.053, 1.04)}
        traces = [trace(name, t, ms[t > 1], 20.0) for name, ms in latencies.items() for t in (1, 7, 14, 15, 16)]
        group = only_group(tmp_path, traces, solutions=["fast", "slow", "far"])
        assert level(group, 7) == ["fast", "slow"]
        return group.regimes[0]

    found = few(0.049)
    assert {s.solution: s.level for s in found.summaries} == {"fast": 5, "slow": 5, "far": 0}
    assert found.of("slow").mean > found.of("fast").mean
    assert found.best == ["fast", "slow"] and report.choice(found)[0].text == "fast, slow"
    assert few(0.03).best == ["slow"]


def test_stale_traces_are_marked_and_left_out(tmp_path):
    """A figure of an earlier source says nothing about the one that is there."""
    traces = [t for t in two() if t.solution == "slow"]
    traces += [trace("fast", t, ms, 20.0, sha1="before" if t == 1 else None) for t, ms in FAST.items()]
    built = comparison.build([trace_set(tmp_path, traces)])
    group = built.sections[0].groups[0]
    found = group.total.of("fast")
    assert row(group, 1).cells["fast"].source == "stale" and level(group, 1) == ["slow"]
    assert (found.passed, found.stale) == (4, 1)
    assert found.mean == pytest.approx(sum(20 / ms for t, ms in FAST.items() if t != 1) / 4)
    assert group.regimes[0].best == [] and any("fast" in note for note in built.notes)
    uuid = row(group, 1).workload.uuid
    assert "fast" not in built.sections[0].matched[uuid] and uuid not in group.ratios[0].by_workload


def test_a_solution_that_is_gone_is_stale_and_one_from_elsewhere_is_unknown(tmp_path):
    group = only_group(tmp_path / "set", two() + [trace("gone", 7, 0.1, 20.0)])
    assert row(group, 7).cells["gone"].source == "stale" and level(group, 7) == ["fast"]
    alone = write(tmp_path / "alone.jsonl", two())
    built = comparison.build([alone])
    assert built.sections[0].groups[0].rows[0].cells["fast"].source == "unknown"
    assert any("not known whether" in note for note in built.notes)


def test_the_packed_source_of_this_repository_decides(tmp_path):
    """Editing a solution must make its committed traces stale, and nothing else."""
    packed = pack.pack("triton_fused_v2")["full"]
    name = packed.name
    file = write(tmp_path / "x.jsonl", [trace(name, 1, sha1=packed.hash()), trace(name, 7, sha1="0" * 40)])
    cells = {row.workload.seq_len: row.cells for row in comparison.build([file]).sections[0].groups[0].rows}
    assert cells[1][name].source != cells[7][name].source == "stale"


@pytest.mark.parametrize(
    ("sha1", "hashes", "complete", "state"),
    [
        ("a", ["b", "a"], True, "current"),
        ("a", ["b"], False, "stale"),
        ("a", [], True, "stale"),
        ("a", [], False, "unknown"),
        (None, ["a"], True, "unknown"),
    ],
)
def test_staleness_of_every_record_has_one_rule(sha1, hashes, complete, state):
    provenance = Provenance(hardware="A GPU", versions={}, timestamp="2026-01-01", source_sha1=sha1)
    assert staleness.judge(provenance, hashes, complete) == state


def test_a_record_is_stale_when_its_solution_is_gone_or_edited():
    current = next(iter(pack.pack("hopper_fused").values())).hash()
    for solution, sha1, state in (("hopper_fused", current, "current"), ("gone", current, "stale")):
        provenance = Provenance(hardware="A GPU", versions={}, timestamp="2026-01-01", source_sha1=sha1)
        assert staleness.of_record(provenance, solution) == state
    edited = provenance.model_copy(update={"source_sha1": "0" * 40})
    assert staleness.of_record(edited, "hopper_fused") == "stale"


@pytest.mark.parametrize(
    "change",
    [
        {"hardware": "Another GPU"},
        {"torch": "2.13"},
        {"cuda_driver": "580"},
        {"protocol": "twice"},
        {"protocol": "once clock=gpu"},
        {"tolerance": DEFAULT},
    ],
)
def test_what_was_measured_otherwise_is_never_mixed(tmp_path, change):
    """Neither a mean nor a win nor a ratio may span machines, versions, protocols or tolerances."""
    traces = [trace("fast", 7, 1.0, 20.0), trace("slow", 7, 2.0, 20.0), trace("fast", 1, 9.0, 20.0, **change)]
    built = comparison.build([trace_set(tmp_path, traces)])
    groups = [group for section in built.sections for group in section.groups]
    assert len(groups) == 2 and len(built.sections) == (1 if set(change) <= {"protocol", "tolerance"} else 2)
    first, second = sorted(groups, key=lambda g: -len(g.solutions))
    assert first.total.of("fast").mean == 20 and row(first, 1).cells == {}
    assert second.total.of("fast").mean == pytest.approx(20 / 9) and second.ratios == []


def test_one_clock_can_be_chosen(tmp_path):
    """What is published by one clock holds no time of the other."""
    traces = [trace("fast", 7, 1.0, 20.0), trace("fast", 7, 0.5, 20.0, protocol="once clock=gpu")]
    root = trace_set(tmp_path, traces)
    for clock, ms in (("events", 1.0), ("gpu", 0.5)):
        (group,) = comparison.build([root], clock=clock).groups
        assert row(group, 7).ms("fast") == ms


def test_the_newest_trace_of_a_cell_counts_unless_its_source_is_gone(tmp_path):
    traces = [
        trace("fast", 7, 3.0, day="2026-01-02"),
        trace("fast", 7, 1.0, day="2026-01-01"),
        trace("fast", 7, 2.0, day="2026-01-03", sha1="before"),
    ]
    built = comparison.build([trace_set(tmp_path, traces)])
    cell = row(built.sections[0].groups[0], 7).cells["fast"]
    assert (cell.latency_ms, cell.superseded, cell.source) == (3.0, 2, "current")
    assert any(note.startswith("not counted") and note.endswith("2") for note in built.notes)


def test_several_trace_sets_are_merged_and_a_file_counts_once(tmp_path):
    one = trace_set(tmp_path / "one", [t for t in two() if t.solution == "fast"])
    other = trace_set(tmp_path / "other", [t for t in two() if t.solution == "slow"])
    file = one / "traces" / "moe" / f"{NAME}.jsonl"
    (section,) = comparison.build([one, other, file, one / "traces"]).sections
    assert section.groups[0].solutions == ["fast", "slow"]
    assert row(section.groups[0], 7).cells["fast"].superseded == 0


def test_ratio_has_its_range(tmp_path):
    built = comparison.build([trace_set(tmp_path, two())], pair=("slow", "fast"))
    (ratio,) = built.sections[0].groups[0].ratios
    expected = {t: FAST[t] / SLOW[t] for t in FAST}
    found = {info.seq_len: ratio.by_workload.get(info.uuid) for info in built.sections[0].workloads}
    assert {t: value for t, value in found.items() if value} == pytest.approx(expected)
    assert (ratio.least, ratio.greatest) == (0.5, 2.0)
    assert ratio.geometric_mean == pytest.approx(statistics.geometric_mean(expected.values()))


def test_latency_over_bound_needs_the_machine_whose_ceilings_are_known(tmp_path):
    from harness.operators.workloads import recorded_bound

    file = write(tmp_path / "x.jsonl", [trace("fast", 7), trace("fast", 7, hardware="A GPU")])
    known, unknown = sorted(comparison.build([file]).sections, key=lambda s: s.hardware, reverse=True)
    least = recorded_bound(NAME, trace("fast", 7).workload, None)
    assert row(known.groups[0], 7).cells["fast"].over_bound == pytest.approx(1 / least.ms)
    assert row(unknown.groups[0], 7).cells["fast"].over_bound is None


def test_another_data_set_needs_its_own_routing_for_a_bound(tmp_path):
    """The public recordings route otherwise than this repository's generated tensors of the same uuid."""
    import safetensors.torch
    import torch

    root = trace_set(tmp_path, two())
    built = comparison.build([root])
    assert all(info.bound_ms is None for info in built.sections[0].workloads)
    assert any("blobs are not in the data set" in note for note in built.notes)
    workload = trace("fast", 7).workload
    blob = root / workload.inputs["routing_logits"].path
    blob.parent.mkdir(parents=True)
    logits = torch.zeros(7, 256)
    logits[:, 192:200] = 5.0  # the rank's first eight experts take every token
    tensors = {"routing_logits": logits, "routing_bias": torch.zeros(256, dtype=torch.bfloat16)}
    safetensors.torch.save_file(tensors, blob)
    info = row(comparison.build([root]).sections[0].groups[0], 7).workload
    assert (info.rows, info.active) == (56, 8) and info.bound_ms > 0


def test_matched_ratios_stand_side_by_side(tmp_path):
    traces = [
        trace("fast", 7, matched=0.98),
        trace("fast", 7, matched=0.7, tolerance=DEFAULT, status="INCORRECT_NUMERICAL"),
    ]
    for tolerance in (None, "relaxed"):
        built = comparison.build([trace_set(tmp_path, traces)], tolerance=tolerance)
        (section,) = built.sections
        assert len(section.groups) == (1 if tolerance else 2)
        assert section.matched[row(section.groups[0], 7).workload.uuid] == {"fast": {"relaxed": 0.98, "default": 0.7}}
        assert "0.7000  0.9800" in report.plain_text(built)


def test_no_exactness_is_shown_where_no_trace_has_a_matched_ratio(tmp_path):
    built = comparison.build([trace_set(tmp_path, [trace("fast", 7, matched=None)])])
    for text in (report.markdown(built), report.plain_text(built)):
        assert "1.000" in text and "Exactness" not in text and "Matched ratio" not in text


def test_untimed_traces_are_judged_but_not_timed(tmp_path):
    """Without a GPU a run says what is right and not what is fast."""
    group = only_group(tmp_path, [trace("fast", 7, 0), trace("slow", 7, 0)])
    cell = row(group, 7).cells["fast"]
    assert cell.passed and cell.latency_ms is None and level(group, 7) == []
    assert (group.total.of("fast").passed, group.total.of("fast").mean) == (1, None)
    assert "PASSED 0.9900" in report.plain_text(comparison.build([tmp_path]))


def test_the_choice_says_what_its_run_groups_differ_in(tmp_path):
    """Two lines for one tolerance must not look alike."""

    def head(**change):
        return report.choice_table(comparison.build([trace_set(tmp_path, [*two(), *two(**change)])])).head[:-3]

    assert head(tolerance=DEFAULT, protocol="twice") == ["tolerance"]
    assert head(protocol="twice") == ["protocol", "tolerance"]
    assert head(torch="2.13") == ["versions", "tolerance"]
    assert head(hardware="Another GPU") == ["machine", "tolerance"]


def test_the_choice_of_untimed_runs_is_not_a_failure(tmp_path):
    group = only_group(tmp_path, [trace("fast", 901, 0)])
    assert [report.choice(regime)[0].text for regime in group.regimes[2:]] == ["not timed", "none passes all"]


# Forms.


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    log = "NaN | * in output"
    traces = [*two(), trace("slow", 14, status="RUNTIME_ERROR", log=log), trace("fast", 15, 3.0, sha1="before")]
    return trace_set(tmp_path_factory.mktemp("set"), traces)


@pytest.fixture(scope="module")
def built(root):
    return comparison.build([root])


@pytest.fixture(scope="module")
def asked(root):
    """Only how slow and fast relate."""
    return comparison.build([root], pair=("slow", "fast"))


def test_markdown_has_a_regular_table_for_each_part(built):
    text = report.markdown(built)
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 5
    for lines in tables:
        assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "| 80 | 4.000    5.0x | **\\* 2.000   10.0x** |" in text
    assert "stale 3.000" in text and "RUNTIME_ERROR" in text and RELAXED in text


def test_a_ratio_is_shown_alone_and_by_workload(asked):
    for text in (report.markdown(asked), " ".join(report.plain_text(asked).split())):
        assert "slow against fast" in text and "from 0.500 to 2.000" in text and "Which to use" not in text
    assert "| 80 | 2.000 | 4.000 | **\\* 2.000** |" in report.markdown(asked)


def test_terminal_ends_with_what_to_use(built):
    """Whoever looks at the last lines of the output sees the answer."""
    text = report.plain_text(built)
    end = text[text.index("Which to use") :]
    assert "none passes all" in end and " fast " in end
    assert " slow " not in end and "stale" in text
    assert max(map(len, text.splitlines())) <= 160


def test_csv_holds_a_line_for_each_cell(built):
    lines = list(csv.DictReader(io.StringIO(compare.as_csv(built))))
    assert len(lines) == 12
    (line,) = (x for x in lines if x["seq_len"] == "80" and x["solution"] == "slow")
    assert (float(line["latency_ms"]), float(line["speedup"]), line["level"]) == (2.0, 10.0, "1")
    assert line["recorded_in"].endswith(f"{NAME}.jsonl:8") and line["source"] == "current"


def test_ratio_csv_holds_a_line_for_each_workload(asked):
    lines = list(csv.DictReader(io.StringIO(compare.as_csv(asked))))
    assert len(lines) == 19 and {(x["a"], x["b"]) for x in lines} == {("slow", "fast")}
    assert next(x["ratio"] for x in lines if x["seq_len"] == "80") == "2.0"


def test_json_holds_the_whole_model(built):
    found = json.loads(compare.as_json(built))
    group = found["sections"][0]["groups"][0]
    cell = next(r for r in group["rows"] if r["workload"]["seq_len"] == 14)["cells"]["slow"]
    assert cell["status"] == "RUNTIME_ERROR" and cell["log"] == "NaN | * in output" and cell["latency_ms"] is None
    assert group["total"]["summaries"][0]["mean"] == built.sections[0].groups[0].total.summaries[0].mean


# The command, and bad input.


@pytest.fixture
def command(capsys):
    """`moebench compare` as a user runs it: exit status, stdout, stderr."""

    def run(*args):
        return cli.main(["compare", *map(str, args)]), *capsys.readouterr()

    return run


def test_a_truncated_line_costs_only_itself(command, tmp_path):
    """Valid lines are not lost because of a bad one; the bad one is named."""
    root = trace_set(tmp_path, two())
    file = root / "traces" / "moe" / f"{NAME}.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    lines[2] = lines[2][: len(lines[2]) // 2] + "\n"
    lines.insert(5, '{"definition": "x"}\n')
    lines.append("\xff\n")
    file.write_bytes("".join(lines).encode("latin-1"))
    status, out, err = command("--traces", root, "--format", "csv")
    assert status == 0 and len(out.splitlines()) == 1 + 9
    places = [line.split(": left out: ")[0] for line in err.splitlines()]
    assert places == [f"{file}:3", f"{file}:6", f"{file}:12"]


@pytest.mark.xdist_group("traces of all models")  # tests/docs has read them there
def test_the_command_reads_this_repository_and_writes_a_file(command, tmp_path):
    output = tmp_path / "new" / "x.json"
    assert command("--tolerance", "relaxed", "--format", "json", "--output", output) == (0, "", "")
    found = json.loads(output.read_text())
    groups = {s["definition"]: s["groups"] for s in found["sections"]}
    assert {g["tolerance"].split(":")[0] for of in groups.values() for g in of} == {"relaxed"}
    place = groups[NAME][0]["rows"][0]["cells"].popitem()[1]["recorded_in"]
    file, line = place.rsplit(":", 1)
    assert json.loads((paths.ROOT / file).read_text().splitlines()[int(line) - 1])["definition"] == NAME


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", "", "no traces with an evaluation in"),
        ("broken.jsonl", '{"definition"', "1 broken, the first is"),
        (
            "other.jsonl",
            '{"op": "gemm", "ms": 3}\n{"op": "x"}\n',
            "other.jsonl: of another schema, want FIB traces: definition",
        ),
        ("list.jsonl", "[1, 2]\n", "list.jsonl: of another schema"),
    ],
)
def test_what_holds_no_traces_gets_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as raised:
        comparison.build([tmp_path])
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_traces_of_another_operator_get_one_line(tmp_path):
    other = trace("fast", 7)
    other = other.model_copy(update={"workload": other.workload.model_copy(update={"axes": {"m": 3}})})
    with pytest.raises(UserError, match="no axis seq_len"):
        comparison.build([write(tmp_path / "x.jsonl", [other])])


def test_a_workload_file_is_no_trace_set():
    with pytest.raises(UserError, match="no traces with an evaluation"):
        comparison.build([paths.workload_file(NAME)])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--traces", "nowhere"], "nowhere: no such file or folder"),
        (["--solutions", "nothing"], "unknown solution 'nothing'; there are: "),
        (["--ratio", "nothing", "fast"], "unknown solution 'nothing'; there are: "),
        (["--definition", "huge"], "unknown definition 'huge'; there are: "),
        (["--tolerance", "loose"], "unknown tolerance 'loose'; there are: "),
    ],
)
def test_bad_arguments_get_one_line(command, tmp_path, args, message):
    traces = [] if "--traces" in args else ["--traces", trace_set(tmp_path, two())]
    status, out, err = command(*traces, *args)
    assert (status, out) == (2, "") and message in err
    assert len(err.strip().splitlines()) == 1


def test_a_clock_without_traces_is_named(command, monkeypatch):
    monkeypatch.setattr(paths, "GPU_CLOCK", paths.ROOT / "no such folder")
    status, _, err = command("--clock", "gpu")
    assert status == 2 and "nothing is recorded by the GPU's clock; `moebench run --clock gpu` records it" in err


def test_solutions_never_run_alike_have_no_ratio(tmp_path):
    traces = [trace("fast", 7), trace("slow", 7, hardware="Another GPU")]
    with pytest.raises(UserError, match="never measured on one machine"):
        comparison.build([trace_set(tmp_path, traces)], pair=("fast", "slow"))

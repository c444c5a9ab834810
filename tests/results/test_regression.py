"""A change that makes a solution slower or wrong is marked, and nothing is compared that cannot be."""

import re
import subprocess

import pytest
import recorded
from harness import cli
from harness.core import paths
from harness.report import regression as report
from harness.results import regression, trace_files
from harness.results.trace_files import Recorded
from recorded import NAME

SEQ_LENS = (1, 7, 14)


def trace(seq_len=1, ms=1.0, solution="tiny", **changes):
    """A trace of one run; ms 0 is a run on a CPU, which is not timed."""
    return recorded.trace(solution, seq_len, ms, **changes)


def compare(before, after):
    return regression.compare(*([Recorded(trace, "x:1", None) for trace in side] for side in (before, after)))


def marks(before, after):
    found = compare(before, after)
    return list(found[found.side == "both"].mark)


@pytest.fixture
def regress(tmp_path, capsys):
    """`moebench regression` on two files of traces, before.jsonl and after.jsonl: exit status, stdout, stderr."""

    def run(before, after, *more, cut_off=""):
        files = []
        for name, traces in (("before", before), ("after", after)):
            files += [f"--{name}", str(tmp_path / f"{name}.jsonl")]
            (tmp_path / f"{name}.jsonl").write_text("".join(f"{t.model_dump_json()}\n" for t in traces) + cut_off)
        return cli.main(["regression", *files, *more]), *capsys.readouterr()

    return run


@pytest.mark.parametrize(("ms", "mark"), [(0.5, ""), (1.0, ""), (1.049, ""), (1.051, "slower"), (3.0, "slower")])
def test_more_than_five_percent_slower_is_marked(ms, mark):
    assert marks([trace()], [trace(1, ms)]) == [mark]


def test_one_slow_workload_is_enough_however_much_the_others_gained():
    before = [trace(t) for t in SEQ_LENS]
    after = [trace(1, 0.1), trace(7, 0.1), trace(14, 1.06)]
    assert marks(before, after) == ["", "", "slower"]


def test_a_failure_is_marked_when_it_is_new():
    good, bad = trace(), trace(1, status="RUNTIME_ERROR")
    assert marks([good], [bad]) == ["failing"]
    assert marks([bad], [bad]) == marks([bad], [good]) == [""]


def test_a_failure_in_one_of_several_runs_is_a_failure():
    after = [trace(), trace(1, status="TIMEOUT", day="2025-12-31"), trace()]
    assert marks([trace()], after) == ["failing"]


def test_the_fastest_of_several_runs_is_a_sides_time():
    """One disturbed run on either side must neither raise an alarm nor hide a slow-down."""
    quiet = [trace(), trace(1, 5.0)]
    (same,) = compare(quiet, [trace(1, 4.0), trace(1, 1.02)]).itertuples()
    assert same.change == pytest.approx(0.02) and same.mark == ""
    assert marks(quiet, [trace(1, 1.2), trace(1, 4.0)]) == ["slower"]


def test_runs_of_an_older_source_on_the_same_side_do_not_count():
    old = trace(1, 0.2, sha1="old", day="2025-01-01")
    assert marks([trace()], [old, trace(1, 1.5)]) == ["slower"]
    assert marks([old, trace(1, 1.5)], [trace(1, 1.5)]) == [""]


@pytest.mark.parametrize(
    "other",
    [
        {"hardware": "Another GPU"},
        {"torch": "2.13"},
        {"cuda_driver": "580"},
        {"tolerance": "relaxed: rtol=0.2"},
        {"protocol": "q"},
    ],
)
def test_different_machines_versions_tolerances_and_protocols_are_never_compared(other):
    found = compare([trace()], [trace(1, 9.0, **other)])
    assert sorted(found.side) == ["after", "before"] and set(found.mark) == {""}
    text = report.markdown(found)
    assert "only before, 1 traces" in text and "only after, 1 traces" in text and next(iter(other.values())) in text


def test_the_commands_wording_and_the_source_are_no_condition():
    after = trace(1, 2.0, command="other", sha1="new")
    assert marks([trace()], [after]) == ["slower"]


def test_untimed_runs_are_compared_for_failures_alone():
    """Traces of a CPU have no times; a solution broken there is still caught."""
    before = [trace(t, 0.0) for t in SEQ_LENS[:2]]
    after = [trace(1, 0.0), trace(7, status="INCORRECT_SHAPE")]
    assert marks(before, after) == ["", "failing"]


def test_what_one_side_lacks_is_listed(regress):
    before = [trace(), trace(7), trace(14, solution="gone")]
    after = [trace(), trace(1, solution="fresh")]
    status, out, _ = regress(before, after)
    assert status == 0
    for line in ("Only before: tiny at T = 7", "Only before: gone at T = 14", "Only after: fresh at T = 1"):
        assert line in out.splitlines()


def test_the_comment_shows_what_is_marked_and_the_status_says_so(regress, tmp_path):
    before = [trace(t) for t in SEQ_LENS]
    after = [trace(1, 1.5), trace(7, status="TIMEOUT"), trace(14, 0.9)]
    status, out, _ = regress(before, after, "--output", str(tmp_path / "comment.md"))
    assert status == 1 and out == (tmp_path / "comment.md").read_text()
    assert "**1 slower by more than 5%, 1 newly failing**, of 3 compared." in out
    shown, _, folded = out.partition("<details>")
    assert "| tiny | e05c6c03 | 1 | 1.0000 | 1.5000 | +50.0% | slower |" in shown
    assert "| tiny | b8f4f012 | 7 | 1.0000 | TIMEOUT |  | failing |" in shown
    assert "| 14 |" not in shown and "| tiny | 8cba5890 | 14 | 1.0000 | 0.9000 | -10.0% |  |" in folded
    assert regress(before, before)[0] == 0


def test_a_broken_line_costs_only_itself(regress):
    traces = [trace(t) for t in SEQ_LENS]
    _, whole, _ = regress(traces, traces)
    status, out, err = regress(traces, traces, cut_off='{"definition": "cut o')
    assert (status, out) == (0, whole) and "after.jsonl:4: left out" in err


def test_nothing_to_compare_is_an_error_of_one_line(regress):
    status, _, err = regress([trace()], [trace(1, hardware="Another GPU")])
    assert status == 1 and err.startswith("nothing could be compared")
    status, out, err = regress([trace()], [])
    assert (status, out) == (2, "") and len(err.strip().splitlines()) == 1 and "no traces" in err


def test_the_example_in_the_docs_edits_two_traces():
    """A user would miss: its sed no longer fits the format of traces, and the page shows a change without an effect."""
    text = (paths.ROOT / "docs" / "ci.md").read_text()
    assert "**1 slower by more than 5%, 1 newly failing**, of 19 compared." in text
    (edit,) = re.findall(r"^sed '(.+)' before.jsonl", text, re.M)
    before = trace_files.read([paths.trace_file(NAME)])[0]
    lines = [r.trace.model_dump_json() for r in before if r.trace.solution == "triton_fused_v2"][:7]
    done = subprocess.run(["sed", edit], input="\n".join(lines), capture_output=True, text=True, check=True)
    changed = [at for at, (old, new) in enumerate(zip(lines, done.stdout.split("\n"), strict=True), 1) if old != new]
    assert changed == [4, 7]


def test_the_recorded_traces_equal_themselves():
    traces, _ = trace_files.read([paths.trace_file(NAME)])
    found = regression.compare(traces, traces)
    assert len(found) == len(traces) and set(found.side) == {"both"} and set(found.mark) == {""}

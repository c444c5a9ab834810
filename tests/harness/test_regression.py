"""A change that makes a solution slower or wrong is marked, and nothing is compared that cannot be."""

import subprocess
import sys

import pytest
from flashinfer_bench import Correctness, Environment, Evaluation, Performance, Trace
from flashinfer_bench.data import load_jsonl_file
from harness.core import paths
from harness.results import regression

from definitions.moe_fp8_block_scale import definition_name

NAME = definition_name("full")
SCRIPT = "-m", "harness", "regression"
LIBS = {"tolerance": "contest: rtol=0.3", "protocol": "p", "torch": "2.11", "solution_sha1": "now", "command": "c"}


@pytest.fixture(scope="module")
def workloads():
    return [t.workload for t in load_jsonl_file(Trace, paths.workload_file(NAME))][:3]


def trace(workload, ms=1.0, solution="tiny", status="PASSED", hardware="A GPU", timestamp="2026-01-01", **libs):
    """A trace of one run; ms 0 is a run on a CPU, which is not timed."""
    passed = status == "PASSED"
    ev = Evaluation(
        status=status,
        environment=Environment(hardware=hardware, libs=LIBS | libs),
        timestamp=timestamp,
        correctness=Correctness() if passed else None,
        performance=Performance(latency_ms=ms, speedup_factor=1, reference_latency_ms=1) if passed else None,
    )
    return Trace(definition=NAME, workload=workload, solution=solution, evaluation=ev)


def marks(before, after):
    return [change.mark for change in regression.compare(before, after).compared]


def regress(tmp_path, before, after, *more):
    """regression.py on two files of traces."""
    for name, traces in (("before", before), ("after", after)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{t.model_dump_json()}\n" for t in traces))
    files = ["--before", tmp_path / "before.jsonl", "--after", tmp_path / "after.jsonl"]
    return subprocess.run([sys.executable, *SCRIPT, *files, *more], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("ms", "mark"), [(0.5, ""), (1.0, ""), (1.049, ""), (1.051, "slower"), (3.0, "slower")])
def test_more_than_five_percent_slower_is_marked(workloads, ms, mark):
    assert marks([trace(workloads[0])], [trace(workloads[0], ms)]) == [mark]


def test_one_slow_workload_is_enough_however_much_the_others_gained(workloads):
    before = [trace(w) for w in workloads]
    after = [trace(workloads[0], 0.1), trace(workloads[1], 0.1), trace(workloads[2], 1.06)]
    assert marks(before, after) == ["", "", "slower"]


def test_a_failure_is_marked_when_it_is_new(workloads):
    good, bad = trace(workloads[0]), trace(workloads[0], status="RUNTIME_ERROR")
    assert marks([good], [bad]) == ["failing"]
    assert marks([bad], [bad]) == marks([bad], [good]) == [""]


def test_a_failure_in_one_of_several_runs_is_a_failure(workloads):
    after = [trace(workloads[0]), trace(workloads[0], status="TIMEOUT", timestamp="2025-12-31"), trace(workloads[0])]
    assert marks([trace(workloads[0])], after) == ["failing"]


def test_the_fastest_of_several_runs_is_a_sides_time(workloads):
    """One disturbed run on either side must neither raise an alarm nor hide a slow-down."""
    quiet = [trace(workloads[0]), trace(workloads[0], 5.0)]
    (same,) = regression.compare(quiet, [trace(workloads[0], 4.0), trace(workloads[0], 1.02)]).compared
    assert same.change == pytest.approx(0.02) and same.mark == ""
    assert marks(quiet, [trace(workloads[0], 1.2), trace(workloads[0], 4.0)]) == ["slower"]


def test_runs_of_an_older_source_on_the_same_side_do_not_count(workloads):
    old = trace(workloads[0], 0.2, solution_sha1="old", timestamp="2025-01-01")
    assert marks([trace(workloads[0])], [old, trace(workloads[0], 1.5)]) == ["slower"]
    assert marks([old, trace(workloads[0], 1.5)], [trace(workloads[0], 1.5)]) == [""]


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
def test_different_machines_versions_tolerances_and_protocols_are_never_compared(tmp_path, workloads, other):
    verdict = regression.compare([trace(workloads[0])], [trace(workloads[0], 9.0, **other)])
    assert not verdict.compared and [(side, n) for side, _, n in verdict.apart] == [("before", 1), ("after", 1)]
    assert next(iter(other.values())) in regression.markdown(verdict)


def test_the_commands_wording_and_the_source_are_no_condition(workloads):
    after = trace(workloads[0], 2.0, command="other", solution_sha1="new")
    assert marks([trace(workloads[0])], [after]) == ["slower"]


def test_untimed_runs_are_compared_for_failures_alone(workloads):
    """Traces of a CPU have no times; a solution broken there is still caught."""
    before = [trace(w, 0.0) for w in workloads[:2]]
    after = [trace(workloads[0], 0.0), trace(workloads[1], status="INCORRECT_SHAPE")]
    assert marks(before, after) == ["", "failing"]


def test_what_one_side_lacks_is_listed(tmp_path, workloads):
    before = [trace(workloads[0]), trace(workloads[1]), trace(workloads[2], solution="gone")]
    after = [trace(workloads[0]), trace(workloads[0], solution="fresh")]
    done = regress(tmp_path, before, after)
    assert done.returncode == 0
    for line in ("Only before: tiny at T = 7", "Only before: gone at T = 14", "Only after: fresh at T = 1"):
        assert line in done.stdout.splitlines()


def test_the_comment_shows_what_is_marked_and_the_status_says_so(tmp_path, workloads):
    before = [trace(w) for w in workloads]
    after = [trace(workloads[0], 1.5), trace(workloads[1], status="TIMEOUT"), trace(workloads[2], 0.9)]
    done = regress(tmp_path, before, after, "--output", tmp_path / "comment.md")
    assert done.returncode == 1 and done.stdout == (tmp_path / "comment.md").read_text()
    assert "**1 slower by more than 5%, 1 newly failing**, of 3 compared." in done.stdout
    shown, _, folded = done.stdout.partition("<details>")
    assert "| tiny | 1 | e05c6c03 | 1.0000 | 1.5000 | +50.0% | **slower** |" in shown
    assert "| tiny | 7 | b8f4f012 | 1.0000 | TIMEOUT |  | **failing** |" in shown
    assert "| tiny | 14 |" not in shown and "| tiny | 14 | 8cba5890 | 1.0000 | 0.9000 | -10.0% |  |" in folded
    assert regress(tmp_path, before, before).returncode == 0


def test_a_broken_line_costs_only_itself(tmp_path, workloads):
    done = regress(tmp_path, [trace(w) for w in workloads], [trace(w) for w in workloads])
    with (tmp_path / "after.jsonl").open("a") as file:
        file.write('{"definition": "cut o')
    files = ["--before", tmp_path / "before.jsonl", "--after", tmp_path / "after.jsonl"]
    again = subprocess.run([sys.executable, *SCRIPT, *files], capture_output=True, text=True, timeout=120)
    assert again.returncode == 0 and again.stdout == done.stdout and "after.jsonl:4: left out" in again.stderr


def test_nothing_to_compare_is_an_error_of_one_line(tmp_path, workloads):
    done = regress(tmp_path, [trace(workloads[0])], [trace(workloads[0], hardware="Another GPU")])
    assert done.returncode == 2 and done.stderr.startswith("nothing could be compared")
    done = regress(tmp_path, [trace(workloads[0])], [])
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1 and "no traces" in done.stderr


def test_the_recorded_traces_equal_themselves():
    recorded = load_jsonl_file(Trace, paths.trace_file(NAME))
    verdict = regression.compare(recorded, recorded)
    assert len(verdict.compared) == len(recorded) and not verdict.marked and not verdict.apart

"""What a run prints, beside what tests/judging sees of it."""

from types import SimpleNamespace

import pytest
from moebench.judging.evaluate import EvaluatedSolution, Outcome
from moebench.judging.plan import Task
from moebench.judging.tolerances import TOLERANCES
from moebench.reports import run_table
from moebench.results.trace_rows import rows_from
from recorded import NAME, trace, workload


def plan_of(protocol, on_gpu=True):
    return SimpleNamespace(device=SimpleNamespace(on_gpu=on_gpu), protocol=protocol)


def rows_of(traces):
    rows = rows_from(traces)
    return rows.assign(tied=True)


@pytest.mark.parametrize(
    ("protocol", "is_ranked"),
    [
        ("warmup=1 iterations=1 trials=1", False),
        ("warmup=10 iterations=50 trials=3", True),
    ],
)
def test_a_single_call_is_never_the_fastest(protocol, is_ranked):
    figures = run_table.figures_of(plan_of(protocol), rows_of([trace("fast", 1)]))
    assert ("fastest" in figures) == is_ranked


def test_no_times_without_a_gpu():
    rows = rows_of([trace("fast", 1, 0)])
    figures = run_table.figures_of(plan_of("trials=1", on_gpu=False), rows)
    assert set(figures) <= set(TOLERANCES)


def outcome_of(name, **result):
    task = Task(NAME, "a label", workload(1), (name,))
    return Outcome(task, {name: EvaluatedSolution(trace(name, 1), **result)})


def test_a_verdict_is_a_line_and_its_reasons_are_indented():
    outcome = outcome_of("mine", reasons=("one", "two"))
    first, *reasons = run_table.lines(outcome, timed=True)
    assert first.split() == "a label mine PASSED 1.0000 ms 10.0x matched 0.9900".split()
    assert reasons == ["    one", "    two"]

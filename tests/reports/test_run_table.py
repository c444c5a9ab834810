"""What a run prints, beside what tests/judging sees of it."""

from types import SimpleNamespace

import pandas as pd
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


def test_figures_of_a_solution():
    traces = [trace("fast", 1, 1.0, 10.0), trace("fast", 7, 3.0, 60.0)]
    figures = run_table.figures_of(plan_of("iterations=50 trials=3"), rows_of(traces))
    assert list(figures) == ["mean ms", "speed-up", "fastest", "relaxed"]
    assert figures.loc["fast"].tolist() == ["2.0000", "15.0x", 2, "0.9900"]


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


def test_an_empty_run_has_a_table_without_figures():
    part = SimpleNamespace(solutions={})
    rows = run_table.rows_of_part(part, [])
    assert isinstance(rows, pd.DataFrame)
    figures = run_table.figures_of(plan_of("iterations=50 trials=3"), rows)
    assert list(figures) == ["mean ms", "speed-up", "fastest"]
    assert figures.empty

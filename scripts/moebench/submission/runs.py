"""What was run of a solution that goes into a pull request, and which traces go along."""

from pathlib import Path

import pandas as pd
from flashinfer_bench import Solution

from moebench.core.provenance import CLOCKS
from moebench.results import measurements
from moebench.results.measurements import DATA_SET_TENSORS
from moebench.results.summary import shown_tolerance
from moebench.submission.data_set import Layer

# Columns of the table of runs, of which the last hold numbers.
COUNTS = ["passed", "failed", "not run"]
COLUMNS = [
    *("solution", "machine", "tolerance", "source", "traces", "tensors"),
    *("date", "protocol", "versions"),
    *COUNTS,
]


def measured(
    solution: Solution, traces: list[Path], layer: Layer, clock: str | None = None
) -> pd.DataFrame:
    """Return the rows of a solution on a layer's workloads, and which of their traces are
    `submitted`.

    clock: which rows count; None: those of the first clock by which a current trace PASSED.
    Submitted are traces of the current source, timed unless they failed: one for each workload and
    machine, the run with the median time, as FIB takes the fastest of several whatever their
    tolerance. Of workloads whose tensors are not this repository's only traces measured with the
    data set's tensors count.
    """
    rows = measurements.load_solution(solution, traces)
    uuids = [workload.uuid for workload in layer.workloads]
    rows = rows[rows.uuid.isin(uuids)]
    clock = clock or clock_of(rows)
    rows = rows[rows.clock == clock].copy()
    rows["submitted"] = False
    rows["has_their_tensors"] = rows.protocol.astype(str).str.contains(DATA_SET_TENSORS)

    has_failed = ~rows.passed.astype(bool)
    has_result = has_failed | rows.ms.notna()
    has_tensors = rows.has_their_tensors | rows.uuid.isin(layer.generated)
    is_current = rows.source == "current"
    usable = rows[is_current & has_result & has_tensors]
    for _, of_machine in usable.groupby("hardware"):
        shown = of_machine[of_machine.tolerance == shown_tolerance(of_machine)]
        submitted = measurements.median_runs(shown, ["uuid"])
        rows.loc[submitted.index, "submitted"] = True

    submitted_first = rows.sort_values("submitted", ascending=False, kind="stable")
    return submitted_first.drop_duplicates(["hardware", "tolerance", "source", "uuid"])


def clock_of(rows: pd.DataFrame) -> str:
    """Return the first clock that timed a PASSED call of the current source, else the first one."""
    is_current = rows.source == "current"
    timed = rows[is_timed_pass(rows) & is_current]
    return next((clock for clock in CLOCKS if (timed.clock == clock).any()), CLOCKS[0])


def is_timed_pass(rows: pd.DataFrame) -> pd.Series:
    """Return which rows PASSED with a time."""
    return rows.passed.astype(bool) & rows.ms.notna()


def lines(solution: Solution, rows: pd.DataFrame, workload_count: int) -> list[dict]:
    """Return a line for each machine, tolerance and state of the source, or one that there is none.

    rows: of `measured`. The keys are among COLUMNS.
    """
    run_lines = []
    for (machine, _, source), run in rows.groupby(["hardware", "tolerance", "source"]):
        tensors = run.has_their_tensors.map({True: "the data set's", False: "generated"})
        line = {
            "solution": solution.name,
            "machine": machine,
            "tolerance": distinct(run.tolerance_text),
            "source": source,
            "traces": "submitted" if run.submitted.any() else "left out",
            "tensors": distinct(tensors),
            "date": distinct(run.timestamp.str[:10]),
            "protocol": distinct(run.protocol),
            "versions": distinct(run.versions),
        }
        run_lines.append(line | counts(run.passed.astype(bool), workload_count))

    if run_lines:
        return run_lines
    nothing = counts(pd.Series(dtype=bool), workload_count)
    return [{"solution": solution.name, "traces": "none"} | nothing]


def counts(passed: pd.Series, workload_count: int) -> dict[str, int]:
    """Return COUNTS of a run. passed: of each workload that was run."""
    passes = int(passed.sum())
    return {
        "passed": passes,
        "failed": len(passed) - passes,
        "not run": workload_count - len(passed),
    }


def distinct(column: pd.Series) -> str:
    """Return a column's values in order, each once."""
    return "; ".join(dict.fromkeys(column))

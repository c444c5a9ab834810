"""The recorded runs of a solution that is submitted, and which of their traces go along.

pull_request.py calls `runs_on` and `table_rows`, contest.py `load_solution`.
"""

from pathlib import Path

import pandas as pd
from flashinfer_bench import Solution

from moebench.core.printable import printable
from moebench.core.provenance import CLOCKS, of_trace
from moebench.packing.manifest import folder_name
from moebench.reports.table import Row
from moebench.results import staleness, trace_files
from moebench.results.bounds import DATA_SET_TENSORS
from moebench.results.summary import shown_tolerance
from moebench.results.trace_rows import rows_from
from moebench.submission.data_set import DataSetDefinition

# The table of runs; the last three columns hold numbers of workloads.
HEAD = ["solution", "machine", "tolerance", "source", "traces", "tensors"]
HEAD += ["date", "protocol", "versions", "passed", "failed", "not run"]
WORD_COLUMNS = len(HEAD) - 3
# by whether the data set's own were used
TENSORS = {True: "the data set's", False: "generated"}


def load_solution(solution: Solution, wanted: list[Path]) -> pd.DataFrame:
    """Return a row for each run of a packed solution below these paths, the newest first.

    There are two further columns, trace: the Trace, and source: its state (`staleness.judge`) by
    this packed solution. Warnings are printed.
    """
    recorded, warnings = trace_files.read(wanted) if wanted else ([], [])
    for warning in warnings:
        print(printable(warning))

    traces = []
    for each in recorded:
        if each.trace.definition == solution.definition:
            traces.append(each.trace)

    rows = rows_from(traces)
    rows["trace"] = traces
    hashes_now = staleness.hashes(solution)
    rows["source"] = [staleness.judge(of_trace(trace), hashes_now) for trace in traces]

    name = folder_name(solution.name, solution.definition)
    of_solution = rows[rows.solution == name]
    return of_solution.sort_values("timestamp", ascending=False, kind="stable")


def runs_on(
    target: DataSetDefinition,
    solution: Solution,
    traces: list[Path],
    clock: str | None = None,
) -> pd.DataFrame:
    """Return a solution's runs on the workloads of a data set's definition: one row of
    `load_solution` for each machine, tolerance, state of the source and workload.

    There are two further columns, has_their_tensors: whether the data set's tensors were used, and
    submitted: whether the trace goes along. clock: of the runs that count; None for the first clock
    by which a run of the current source PASSED.
    """
    rows = load_solution(solution, traces)
    uuids = [workload.uuid for workload in target.workloads]
    rows = rows[rows.uuid.isin(uuids)]
    clock = clock or clock_of(rows)
    rows = rows[rows.clock == clock].copy()

    rows["has_their_tensors"] = rows.protocol.astype(str).str.contains(DATA_SET_TENSORS)
    rows["submitted"] = rows.index.isin(submitted_runs(rows, target))
    submitted_first = rows.sort_values("submitted", ascending=False, kind="stable")
    return submitted_first.drop_duplicates(["hardware", "tolerance", "source", "uuid"])


def clock_of(rows: pd.DataFrame) -> str:
    """Return the first of CLOCKS by which a run of the current source PASSED, else the first."""
    is_current = rows.source == "current"
    timed = rows[is_timed_pass(rows) & is_current]
    for clock in CLOCKS:
        if (timed.clock == clock).any():
            return clock
    return CLOCKS[0]


def is_timed_pass(rows: pd.DataFrame) -> pd.Series:
    """Return which rows PASSED with a time."""
    return rows.passed & rows.ms.notna()


def submitted_runs(rows: pd.DataFrame, target: DataSetDefinition) -> list[int]:
    """Return the index of the runs whose traces go along, one for each workload and machine.

    They are of the current source, and timed unless they failed. If there are several, the one with
    the median time at one tolerance is taken, as FIB would take the fastest at any. If a workload's
    tensors are not this repository's, only runs on the data set's tensors go along.
    """
    is_current = rows.source == "current"
    has_result = ~rows.passed | rows.ms.notna()
    has_tensors = rows.has_their_tensors | rows.uuid.isin(target.generated)
    usable = rows[is_current & has_result & has_tensors]

    index = []
    for _, of_machine in usable.groupby("hardware"):
        shown = of_machine[of_machine.tolerance == shown_tolerance(of_machine)]
        index += list(median_runs(shown).index)
    return index


def median_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a run for each workload: one that failed, if any did, or else the one with the median
    time; of two runs the slower.
    """
    chosen = []
    for _, runs in rows.groupby("uuid"):
        slowest_last = runs.sort_values(["passed", "ms"], kind="stable")
        place = len(runs) // 2 if runs.passed.all() else 0
        chosen.append(slowest_last.index[place])
    return rows.loc[chosen]


def table_rows(
    solution: Solution, runs: pd.DataFrame, workload_count: int
) -> list[Row]:
    """Return a row for the table with HEAD for each machine, tolerance and state of the source; a
    row that says "none" where there is no run.

    runs: as `runs_on` returns them. workload_count: how many workloads the definition has.
    """
    rows = []
    for (machine, _, source), run in runs.groupby(["hardware", "tolerance", "source"]):
        tolerance = distinct(run.tolerance_text)
        tensors = run.has_their_tensors.map(TENSORS)
        passed = int(run.passed.sum())
        row = [
            solution.name,
            machine,
            tolerance,
            source,
            "submitted" if run.submitted.any() else "left out",
            distinct(tensors),
            distinct(run.timestamp.str[:10]),
            distinct(run.protocol),
            distinct(run.versions),
            passed,
            len(run) - passed,
            workload_count - len(run),
        ]
        rows.append(row)

    if rows:
        return rows
    unknown = [None] * 3
    return [[solution.name, *unknown, "none", None, *unknown, 0, 0, workload_count]]


def distinct(column: pd.Series) -> str:
    """Return a column's values, each once, joined in their order."""
    return "; ".join(dict.fromkeys(column))

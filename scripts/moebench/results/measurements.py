"""The one table of results, from which `moebench compare`, the pages and the figures are drawn.

`load` reads traces as rows (trace_rows.py), tells which are stale, merges all runs of a cell into
one row, and ranks those rows. A cell is one solution on one workload, GPU, tolerance and clock:
three runs of one solution at T=57 on an H200 become one row with runs=3, their median ms, and their
range ms_low to ms_high.
"""

import re
from pathlib import Path

import pandas as pd

from moebench.results import spread, staleness, trace_files
from moebench.results.bounds import bound_columns
from moebench.results.trace_rows import ERRORS, SHARES, TIMES, rows_from, source_hash

# Rows that agree in GROUP and CONDITION are ranked and averaged together.
GROUP = ["definition", "hardware", "tolerance", "clock"]
CONDITION = ["versions", "protocol"]

# Rows that agree in CELL, in CONDITION and in their source are runs of one cell.
CELL = [*GROUP, "solution", "uuid"]


def load(wanted: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return a row for each CELL below these paths, and a warning for each unreadable line.

    Columns are those of trace_rows.py, merged as `merge_runs` says, those of `bound_columns`, and
    source: "current", "earlier", "stale" or "unknown" (`staleness.judge`);
    others: the trace's fields that FIB's schema lacks;
    comparable: whether versions and protocol are those of most cells of the GROUP;
    runs: how many runs were merged into the row;
    ms_low, ms_high: the range of their times, and range_from: what it was taken from (spread.py);
    counts: whether the row is comparable, timed and not stale;
    over_bound: ms / bound_ms;
    over_fastest: ms / the least ms of the workload, NaN where the row is not ranked;
    tied: whether the row's range overlaps that of the fastest.

    Raises UserError where there is no trace.
    """
    recorded, warnings = trace_files.read(wanted)
    states, unreadable = staleness.judge_traces(recorded)

    rows = rows_from([each.trace for each in recorded])
    rows["place"] = [each.place for each in recorded]
    rows["source"] = states
    rows["others"] = [each.trace.unknown_fields() for each in recorded]
    rows = rows.join(bound_columns(recorded))

    rows = with_ranks(one_row_per_cell(rows))
    return rows, [*warnings, *unreadable]


def one_row_per_cell(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each CELL, merged from the runs that agree with the cell's best run.

    The best run is one that is not stale, if there is any; among these one under the condition of
    most cells of the group (`comparable`), if there is any; among these the last.
    """
    rows = rows.assign(code=source_hash(rows) + rows.source)
    rows["fresh"] = rows.source != "stale"
    rows["comparable"] = has_usual_condition(rows)

    # in these a run has to agree with the best one
    merged_by = ["fresh", "code", *CONDITION]
    best_last = rows.sort_values(["fresh", "comparable", "timestamp"], kind="stable")
    best = best_last.groupby(CELL)[merged_by].transform("last")
    agrees = rows[merged_by] == best.sort_index()
    chosen = rows[agrees.all(axis="columns")]

    merged = merge_runs(chosen, CELL).drop(columns=["fresh", "code"])
    return merged.sort_values([*GROUP, "tokens", "uuid"])


def has_usual_condition(rows: pd.DataFrame) -> pd.Series:
    """Return whether a row's CONDITION is that of most cells of its GROUP that are not stale."""
    cell = rows.solution + rows.uuid
    # NaN, which nunique leaves out
    rows = rows.assign(fresh_cell=cell.where(rows.fresh))
    of_condition = rows.groupby([*GROUP, *CONDITION])
    rows["cells"] = of_condition.fresh_cell.transform("nunique")
    most = rows.groupby(GROUP).cells.transform("max")
    return rows.cells == most


def merge_runs(rows: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return one row for all runs that agree in the columns of the key.

    It is the row of the newest run, or of the newest that failed if any did, but for these columns:
    runs: how many there are;
    TIMES: medians, and ms_low, ms_high: the least and the greatest ms; all NaN where a run failed;
    SHARES: the least; ERRORS: the greatest.
    """
    of_cell = rows.groupby(key)
    merged = rows.assign(
        runs=of_cell.passed.transform("size"),
        ms_low=of_cell.ms.transform("min"),
        ms_high=of_cell.ms.transform("max"),
    )
    merged[TIMES] = of_cell[TIMES].transform("median")
    merged[SHARES] = of_cell[SHARES].transform("min")
    merged[ERRORS] = of_cell[ERRORS].transform("max")

    failed_last = merged.sort_values(
        ["passed", "timestamp"], ascending=[False, True], kind="stable"
    )
    merged = failed_last.drop_duplicates(key, keep="last")
    times_and_range = [*TIMES, "ms_low", "ms_high"]
    return merged.assign(**merged[times_and_range].where(merged.passed))


def with_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with ranges, counts, over_bound, over_fastest and tied, as in `load`."""
    rows = spread.with_ranges(rows)
    is_fresh = rows.source != "stale"
    counts = rows.comparable & is_fresh & rows.ms.notna()

    ranked_ms = rows.ms.where(counts & is_ranked(rows))
    workload = [rows[column] for column in [*GROUP, "uuid"]]
    fastest = ranked_ms.groupby(workload).transform("min")

    rows = rows.assign(
        counts=counts,
        over_bound=rows.ms / rows.bound_ms,
        over_fastest=ranked_ms / fastest,
        tied=spread.tied_with_fastest(rows, ranked_ms, workload),
    )
    return rows.reset_index(drop=True)


def is_ranked(rows: pd.DataFrame) -> pd.Series:
    """Return whether each row's time can say which solution is the fastest.

    The time of a single call cannot; passes at further tolerances are recorded with one.
    """
    return rows.protocol.map(timed_calls) != 1


def timed_calls(protocol: str) -> int | None:
    """Return 150 of "warmup=10 iterations=50 trials=3", None where the protocol does not say it."""
    iterations = re.search(r"\biterations=(\d+)", protocol)
    trials = re.search(r"\btrials=(\d+)", protocol)
    if not iterations or not trials:
        return None
    return int(iterations[1]) * int(trials[1])

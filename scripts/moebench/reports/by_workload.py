"""The tables of `moebench compare` with a row for each workload and a column for each solution:
times, or how much of the GPU is used.

Their rows are of one definition, GPU, clock and tolerance.
"""

from collections.abc import Callable

import pandas as pd

from moebench.reports.comparison import TIED_WORDS, ms_text, title
from moebench.reports.table import Cell, Row, Table, decimal
from moebench.results.measurements import is_ranked
from moebench.results.summary import by_solution

TIMES_CAPTION = f"Bold: {TIED_WORDS}."
ONE_CALL_CAPTION = "Times of a single call, none of which is called the fastest."
RATES_CAPTION = (
    "TFLOP/s, and after the stroke TB/s: the FLOPs and bytes of the roofline bound, each FLOP done "
    "and each byte moved once, over the time. What a kernel moves or computes beyond that does not "
    "count. Bold: as among the times."
)


def times(rows: pd.DataFrame) -> Table:
    """Return ms, in brackets times the bound, which stands beside T."""
    solutions = list(by_solution(rows).index)
    bounds = rows.groupby(["tokens", "uuid"]).bound_ms.max()

    table_rows = workload_rows(rows, solutions, time_cell)
    for row, bound in zip(table_rows, bounds, strict=True):
        row.insert(1, decimal(bound, 3))

    return Table(
        title=title(rows, rows.tolerance_text.iloc[0], "ms (times the bound)"),
        head=["T", "bound", *solutions],
        sections=[table_rows],
        caption=TIMES_CAPTION if is_ranked(rows).any() else ONE_CALL_CAPTION,
        word_columns=0,
    )


def rates(rows: pd.DataFrame) -> Table:
    """Return TFLOP/s and TB/s."""
    solutions = list(by_solution(rows).index)
    return Table(
        title=title(rows, "TFLOP/s / TB/s"),
        head=["T", *solutions],
        sections=[workload_rows(rows, solutions, rate_cell)],
        caption=RATES_CAPTION,
        word_columns=0,
    )


def workload_rows(
    rows: pd.DataFrame, solutions: list[str], cell: Callable[..., Cell | None]
) -> list[Row]:
    """Return for each workload T and a cell for each solution.

    cell: takes a row of a DataFrame's itertuples.
    """
    table_rows = []
    for (tokens, _), of_workload in rows.groupby(["tokens", "uuid"]):
        cells = {row.solution: cell(row) for row in of_workload.itertuples()}
        table_rows.append([tokens, *map(cells.get, solutions)])
    return table_rows


def time_cell(row) -> Cell:
    """Return "0.035 (3.55)", ms and times the bound; the status and what matched without a time.

    "stale" stands before both.
    """
    is_stale = row.source == "stale"
    text = "stale " if is_stale else ""
    if pd.isna(row.ms):
        text += row.status
        if pd.notna(row.matched):
            text += f" {row.matched:.4f}"
        return Cell(text, "" if row.passed else "failed")

    text += ms_text(row)
    if pd.notna(row.over_bound):
        text += f" ({row.over_bound:.2f})"
    if row.tied:
        return Cell(text, "best")
    return Cell(text, "stale" if is_stale else "")


def rate_cell(row) -> Cell | None:
    """Return "1210 / 0.85", None without a time or without the workload's FLOPs."""
    if pd.isna(row.ms) or pd.isna(row.flops) or row.source == "stale":
        return None
    tera_flops = row.flops / row.ms * 1e-9
    tera_bytes = row.bytes / row.ms * 1e-9
    digits = 0 if tera_flops >= 10 else 1
    text = f"{tera_flops:.{digits}f} / {tera_bytes:.2f}"
    return Cell(text, "best" if row.tied else "")

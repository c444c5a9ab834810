"""The table of `moebench compare --rates`: how much of the GPU each solution uses."""

import pandas as pd

from moebench.reports.comparison import clock_text
from moebench.reports.table import Cell, Table
from moebench.results.summary import by_solution

CAPTION = (
    "TFLOP/s, and after the stroke TB/s: the FLOPs and bytes of the roofline bound, each FLOP done "
    "and each byte moved once, over the time. What a kernel moves or computes beyond that does not "
    "count. Bold: as among the times."
)


def rates(rows: pd.DataFrame) -> Table:
    """Return a row for each workload, a column for each solution.

    rows: of one definition, GPU, clock and tolerance.
    """
    order = list(by_solution(rows).index)
    table_rows = []
    for (tokens, _), of_workload in rows.groupby(["tokens", "uuid"]):
        cells = {row.solution: rate_cell(row) for row in of_workload.itertuples()}
        table_rows.append([tokens, *(cells.get(name) for name in order)])

    where = f"{rows.hardware.iloc[0]}, TFLOP/s / TB/s{clock_text(rows)}"
    return Table(
        title=f"{rows.definition.iloc[0]}\n{where}",
        head=["T", *order],
        sections=[table_rows],
        caption=CAPTION,
        words=0,
    )


def rate_cell(row) -> Cell | None:
    """Return "1210 / 0.85", None without a time or without the workload's FLOPs.

    row: of a DataFrame's itertuples.
    """
    if pd.isna(row.ms) or pd.isna(row.flops) or row.source == "stale":
        return None
    tera_flops = row.flops / row.ms * 1e-9
    tera_bytes = row.bytes / row.ms * 1e-9
    digits = 0 if tera_flops >= 10 else 1
    return Cell(f"{tera_flops:.{digits}f} / {tera_bytes:.2f}", "best" if row.level else "")

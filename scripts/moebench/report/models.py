"""Every model's layer in one table: which solution to use, how fast, how far from the roofline
bound.
"""

import pandas as pd

from moebench.operators.models import Layer, layers, weight_bytes
from moebench.operators.roofline import MEASURED_ON
from moebench.operators.workloads import recorded_counts
from moebench.report.comparison import nearest
from moebench.report.table import Cell, Table, decimal
from moebench.results.summary import SHOWN, ahead, by_solution, to_use

TOKENS = (1, 32, 1024, 8192)
GPU_GB = 141  # of MEASURED_ON
TOO_LARGE = "✗"


def named(layer: Layer) -> str:
    return (
        f"{layer.name} {TOO_LARGE}"
        if weight_bytes(layer) * layer.count / 1e9 > GPU_GB
        else layer.name
    )


def measured(rows: pd.DataFrame) -> list[tuple[Layer, pd.DataFrame]]:
    """The layers that have rows on the GPU whose bound is known, each with them."""
    here = rows[rows.hardware == MEASURED_ON]
    return [
        (layer, cells)
        for layer in layers()
        if len(cells := here[here.definition == layer.definition])
    ]


def use(rows: pd.DataFrame) -> Table:
    """One row a measured layer. rows: of every definition, by one clock."""
    made = []
    for layer, cells in measured(rows):
        if (best := to_use(cells)) is None:
            made.append(
                [named(layer), "none passed" if cells.counts.any() else "stale", *[None] * 3]
            )
            continue
        figures = (
            decimal(x, 2) for x in (by_solution(cells).over_bound[best], ahead(cells, best).min())
        )
        made.append([named(layer), Cell(best, "best"), to_use(cells, "default"), *figures])
    head = ["model", f"at {SHOWN}", "at default", "ms/bound", "over the next"]
    return Table(head=head, sections=[made], words=3)


def speeds(rows: pd.DataFrame) -> Table:
    """One row a measured layer: times the bound of the solution to use, at the workloads nearest to
    TOKENS.
    """
    made = []
    for layer, cells in measured(rows):
        best = to_use(cells)
        of = cells[
            (cells.solution == best) & (cells.tolerance == SHOWN) & cells.counts
        ].drop_duplicates("tokens")
        at = of.set_index("tokens").over_bound
        near = {t: nearest(t, at.index) for t in TOKENS} if len(at) else {}
        texts = [f"{at[p]:.2f}{'' if p == t else f' ({p})'}" for t, p in near.items()]
        if 1 in at.index:  # one routing, and the bound hangs on how many experts it has here
            uuid = of.set_index("tokens").uuid[1]
            texts[0] += f", {recorded_counts(layer.geometry)[uuid].active} active"
        made.append([layer.name, *(texts or [None] * len(TOKENS))])
    caption = (
        "Latency over the roofline bound. In brackets: T of the nearest workload, where there is none "
        "of that T. At T=1 with the active experts of that one routing on the rank."
    )
    return Table(head=["model", *(f"T={t}" for t in TOKENS)], sections=[made], caption=caption)

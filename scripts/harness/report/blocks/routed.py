"""What a layer takes behind a router, over its form with the router inside; from traces/."""

from harness.core import paths
from harness.operators.catalogue import definition_name
from harness.operators.moe_fp8_block_scale_routed import ROUTER_INSIDE
from harness.operators.roofline import MEASURED_ON
from harness.report.blocks.models import MISSED
from harness.report.table import Table
from harness.results.comparison import Comparison, cell_table
from harness.results.model_names import layers
from harness.results.trace_table import CONDITION

MOST = 1.02  # times as long as with the router inside
ROUTED = {definition_name(inside): definition_name(routed) for routed, inside in ROUTER_INSIDE.items()}


def definitions() -> list[str]:
    """Of the layers whose routed form has traces, in both forms."""
    pairs = [(layer.definition, ROUTED[layer.definition]) for layer in layers()]
    return [name for pair in pairs if paths.trace_file(pair[1]).exists() for name in pair]


def ratios(found: Comparison) -> dict[tuple[str, str], list[float]]:
    """(solution, definition with the router inside) -> latency over that with the router inside, at each T.

    Of cells that count on one machine, and of the conditions in which the most T have both.
    """
    cells = cell_table(found)
    cells = cells[cells.counts & (cells.hardware == MEASURED_ON)]
    same = [*CONDITION, "solution", "seq_len"]
    behind = cells.assign(definition=cells.definition.map({routed: inside for inside, routed in ROUTED.items()}))
    both = cells.merge(behind, on=same, suffixes=("_inside", "_behind"))
    both["ratio"] = both.latency_ms_behind / both.latency_ms_inside
    of_runs = both.groupby([*CONDITION, "solution"]).ratio.apply(list)
    out = {}
    for (definition, *_, solution), run in of_runs.items():
        out[solution, definition] = max(out.get((solution, definition), []), run, key=len)
    return out


def cell(found: list[float] | None) -> str | None:
    if found:
        missed = f" {MISSED}" if max(found) > MOST else ""
        return f"{min(found):.2f} to {max(found):.2f}{missed} ({len(found)})"


def block(found: Comparison) -> str:
    """Markdown: one row per layer, a column for each solution that is recorded in both forms."""
    of = ratios(found)
    if not of:
        return f"No solution's current source is recorded in both forms, in one protocol, on {MEASURED_ON}."
    names = sorted({solution for solution, _ in of})
    rows = [[layer.name, *(cell(of.get((name, layer.definition))) for name in names)] for layer in layers()]
    caption = "Latency over that with the router inside, least and most; in brackets how many T"
    return Table(["model", *names], [rows], caption=f"{caption}; {MISSED}: more than {MOST:g}.").markdown()

"""What a layer takes behind a router, over its form with the router inside; from traces/."""

from harness.core import paths
from harness.operators.catalogue import definition_name
from harness.operators.moe_fp8_block_scale_routed import ROUTER_INSIDE
from harness.operators.roofline import MEASURED_ON
from harness.report.blocks.models import MISSED
from harness.report.table import Table
from harness.results.comparison import Comparison, RunGroup
from harness.results.model_names import Layer, layers

MOST = 1.02  # times as long as with the router inside
ROUTED = {definition_name(inside): definition_name(routed) for routed, inside in ROUTER_INSIDE.items()}


def definitions() -> list[str]:
    """Of the layers whose routed form has traces, in both forms."""
    pairs = [(layer.definition, ROUTED[layer.definition]) for layer in layers()]
    return [name for pair in pairs if paths.trace_file(pair[1]).exists() for name in pair]


def groups(found: Comparison, definition: str) -> dict[tuple[str, ...], RunGroup]:
    """The run groups on one machine, by what must be equal for two to be compared."""
    return {
        (section.versions_text, group.tolerance, group.protocol): group
        for section in found.sections
        if section.definition == definition and section.hardware == MEASURED_ON
        for group in section.groups
    }


def times(group: RunGroup, solution: str) -> dict[int, float]:
    """Tokens -> latency of the cells that count."""
    return {row.workload.seq_len: ms for row in group.rows if (ms := row.ms(solution))}


def ratios(found: Comparison, layer: Layer, solution: str) -> list[float]:
    """Latency over that with the router inside, by T, of the conditions with the most T; [] without any."""
    inside, routed = (groups(found, name) for name in (layer.definition, ROUTED[layer.definition]))
    pairs = []
    for conditions in inside.keys() & routed.keys():
        ours, theirs = (times(of[conditions], solution) for of in (routed, inside))
        pairs.append([ours[tokens] / theirs[tokens] for tokens in sorted(ours.keys() & theirs.keys())])
    return max(pairs, key=len, default=[])


def cell(found: list[float]) -> str:
    if not found:
        return "-"
    missed = f" {MISSED}" if max(found) > MOST else ""
    return f"{min(found):.2f} to {max(found):.2f}{missed} ({len(found)})"


def block(found: Comparison) -> str:
    """Markdown: one row per layer, a column for each solution that is recorded in both forms."""
    groups_of = [group for section in found.sections for group in section.groups]
    names = sorted({name for group in groups_of for name in group.solutions})
    columns = {name: [ratios(found, layer, name) for layer in layers()] for name in names}
    columns = {name: of_layers for name, of_layers in columns.items() if any(of_layers)}
    if not columns:
        return f"No solution is recorded in both forms on {MEASURED_ON} with the sources as they are."
    rows = [[layer.name, *(cell(of[at]) for of in columns.values())] for at, layer in enumerate(layers())]
    caption = "Latency over that with the router inside, least and most; in brackets how many T"
    return Table(["model", *columns], [rows], caption=f"{caption}; {MISSED}: more than {MOST:g}.").markdown()

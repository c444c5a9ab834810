"""Figure: what the bf16 layer's solutions take over the number of tokens, in log-log, and over the roofline bound."""

from matplotlib.figure import Figure

from harness.report.figures.picture import Picture, conditions, picture
from harness.report.figures.style import BOUND_LINE, draw_bound, legend_below, log_ticks, looks, token_axis, two_panels
from harness.results.comparison import Comparison, RunGroup


def data(group: RunGroup) -> dict:
    """What is drawn: {"bound": [[T, ms]], solution: [[T, ms]]}, of cells that were timed, by T."""
    found = {"bound": [[row.workload.seq_len, row.workload.bound_ms] for row in group.rows if row.workload.bound_ms]}
    for row in group.rows:
        for name, cell in row.cells.items():
            if cell.latency_ms:
                found.setdefault(name, []).append([cell.seq_len, cell.latency_ms])
    return found


def draw(found: dict, title: str, below: str) -> Figure:
    """Two plots side by side over log T; found as `data` returns it, with a solution; below: small print."""
    figure, (left, right) = two_panels(title)
    names = sorted(set(found) - {"bound"})
    appearance = looks(names)
    bound = dict(map(tuple, found["bound"]))
    draw_bound(left, list(bound.items()))
    if bound:
        right.axhline(1, **BOUND_LINE)
    for name in names:
        left.plot(*zip(*found[name], strict=True), label=name, **appearance[name])
        over = [(t, ms / bound[t]) for t, ms in found[name] if t in bound]
        if over:
            right.plot(*zip(*over, strict=True), **appearance[name])
    drawn = [ms for points in found.values() for _, ms in points]
    left.set(yscale="log", ylabel="latency, ms", ylim=(min(drawn) / 1.25, max(drawn) * 1.25))
    right.set(ylabel="times the roofline bound")
    tokens = {t for name in names for t, _ in found[name]}
    for axes in (left, right):
        token_axis(axes, tokens, tokens)
    log_ticks(left.yaxis)
    legend_below(figure, left, below)
    return figure


def pictures(comparison: Comparison) -> list[Picture]:
    """One, of the first machine and protocol; none before anything was timed."""
    for section in comparison.sections:
        for group in section.groups:
            title = f"{section.definition}\n{section.hardware}, {group.tolerance}"
            return [picture("w16a16.svg", draw, data(group), title, conditions(section, group))]
    return []

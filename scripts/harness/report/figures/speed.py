"""Figure: speed-up and latency of every solution over the number of tokens, with the roofline bound."""

from matplotlib.figure import Figure

from harness.report.figures.picture import Picture, conditions, picture, run_groups
from harness.report.figures.style import draw_bound, legend_below, log_ticks, looks, token_axis, two_panels
from harness.results.comparison import Comparison, RunGroup


def data(group: RunGroup) -> dict:
    """What is drawn: {"bound": [[T, ms, speed-up]], solution: [[T, ms, speed-up]]}, of cells that count, by T."""
    found = {"bound": []}
    for row in group.rows:
        if row.bound_speedup is not None:
            found["bound"].append([row.workload.seq_len, row.workload.bound_ms, row.bound_speedup])
        for cell in row.cells.values():
            if cell.counts:
                found.setdefault(cell.solution, []).append([cell.seq_len, cell.latency_ms, cell.speedup])
    return found


def draw(found: dict, num_workloads: int, title: str, below: str) -> Figure:
    """Two plots side by side over log T; found as `data` returns it, with a solution; below: small print."""
    figure, panels = two_panels(title)
    names = sorted(set(found) - {"bound"})
    appearance = looks(names)
    for axes, at, label in ((panels[0], 2, "speed-up over the reference"), (panels[1], 1, "latency, ms")):
        draw_bound(axes, [(point[0], point[at]) for point in found["bound"]], greater_is_better=at == 2)
        for name in names:
            points = found[name]
            lacking = "" if len(points) == num_workloads else f" ({len(points)} of {num_workloads} workloads)"
            xs, ys = [point[0] for point in points], [point[at] for point in points]
            axes.plot(xs, ys, label=name + lacking, **appearance[name])
        drawn = [point[at] for points in found.values() for point in points]
        token_axis(axes, [point[0] for name in names for point in found[name]])
        axes.set(yscale="log", ylabel=label, ylim=(min(drawn) / 1.25, max(drawn) * 1.25))
        log_ticks(axes.yaxis)
    legend_below(figure, panels[1], below)
    return figure


def pictures(comparison: Comparison, tolerance: str) -> list[Picture]:
    """One for each run group of the full FP8 layer that has a timed solution."""
    return [
        picture(f"speed-{where}.svg", draw, found, len(group.rows), f"{section.hardware}, {group.tolerance}", below)
        for section, group, where in run_groups(comparison, tolerance)
        if (below := conditions(section, group)) and set(found := data(group)) > {"bound"}
    ]

"""Picture: speed-up and latency of every solution over the number of tokens, with the bound."""

from matplotlib.figure import Figure

from harness.report.plot_style import FAINT, INK, log_ticks, looks, token_axis
from harness.results.comparison import RunGroup


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
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    figure.suptitle(title, fontsize=11)
    names = sorted(set(found) - {"bound"})
    appearance = looks(names)
    panels = figure.subplots(1, 2)
    for axes, at, label in ((panels[0], 2, "speed-up over the reference"), (panels[1], 1, "latency, ms")):
        if found["bound"]:
            tokens = [point[0] for point in found["bound"]]
            values = [point[at] for point in found["bound"]]
            axes.plot(tokens, values, color=INK, linewidth=1.2, linestyle=(0, (2, 2)), label="bound")
            # What lies beyond the bound cannot be reached.
            beyond = 10 * max(values) if at == 2 else min(values) / 10
            axes.fill_between(tokens, values, beyond, color=FAINT, alpha=0.16, linewidth=0)
        for name in names:
            points = found[name]
            lacking = "" if len(points) == num_workloads else f" ({len(points)} of {num_workloads} workloads)"
            axes.plot(
                [point[0] for point in points],
                [point[at] for point in points],
                label=name + lacking,
                **appearance[name],
            )
        drawn = [point[at] for name in names for point in found[name]] + [point[at] for point in found["bound"]]
        token_axis(axes, [point[0] for name in names for point in found[name]])
        axes.set(yscale="log", ylabel=label, ylim=(min(drawn) / 1.25, max(drawn) * 1.25))
        log_ticks(axes.yaxis)
    handles, labels = panels[1].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), title=below)
    legend.get_title().set(fontsize=8, ha="center")
    return figure

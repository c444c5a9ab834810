"""Picture: what the bf16 layer's solutions take over the number of tokens, in log-log, and over the bound."""

from matplotlib.figure import Figure

from harness.report.plot_style import FAINT, INK, log_ticks, looks
from harness.results.comparison import RunGroup


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
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    figure.suptitle(title, fontsize=11)
    names = sorted(set(found) - {"bound"})
    appearance = looks(names)
    bound = dict(map(tuple, found["bound"]))
    left, right = figure.subplots(1, 2)
    tokens = sorted({t for name in names for t, _ in found[name]})
    if bound:
        left.plot(list(bound), list(bound.values()), color=INK, linewidth=1.2, linestyle=(0, (2, 2)), label="bound")
        left.fill_between(list(bound), list(bound.values()), min(bound.values()) / 10, color=FAINT, alpha=0.16, lw=0)
        right.axhline(1, color=INK, linewidth=1.2, linestyle=(0, (2, 2)))
    for name in names:
        left.plot(*zip(*found[name], strict=True), label=name, **appearance[name])
        over = [(t, ms / bound[t]) for t, ms in found[name] if t in bound]
        if over:
            right.plot(*zip(*over, strict=True), **appearance[name])
    drawn = [ms for name in found for _, ms in found[name]]
    left.set(yscale="log", ylabel="latency, ms", ylim=(min(drawn) / 1.25, max(drawn) * 1.25))
    right.set(ylabel="times the bound")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("T, tokens")
        axes.set_xticks(tokens, [str(t) for t in tokens])
    log_ticks(left.yaxis)
    handles, labels = left.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), title=below)
    legend.get_title().set(fontsize=8, ha="center")
    return figure

"""Picture: what a solution takes over the number of tokens for each kind of routing, and over the target."""

from matplotlib.figure import Figure

from harness.evaluation.sweep_record import TARGETS, Sweep
from harness.report.plot_style import INK, log_ticks, looks

TICKS = (2, 8, 24, 100, 400, 1500, 6000, 32768)


def draw(sweep: Sweep, below: str) -> Figure:
    """Two plots side by side over log T; below: small print."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    figure.suptitle(sweep.head.solution, fontsize=11)
    left, right = figure.subplots(1, 2)
    appearance = looks(sweep.kinds)
    timed = [p for p in sweep.points if p.error is None and p.tokens > 0]
    for kind in sweep.kinds:
        mine = [p for p in timed if p.kind == kind]
        tokens = [p.tokens for p in mine]
        left.plot(tokens, [p.ms for p in mine], label=kind, **appearance[kind])
        right.plot(tokens, [p.ms / p.target_ms for p in mine], **appearance[kind])
    right.axhline(1, color=INK, linewidth=1.2, linestyle=(0, (2, 2)))
    left.set(yscale="log", ylabel="latency, ms")
    right.set(ylabel=f"times the target, {TARGETS[sweep.head.target].words} ms", ylim=(0, None))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("T, tokens")
        axes.set_xticks(TICKS, list(map(str, TICKS)))
    log_ticks(left.yaxis)
    handles, labels = left.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), title=below)
    legend.get_title().set(fontsize=8, ha="center")
    return figure

"""Figure: what a solution takes over the number of tokens for each kind of routing, and over the target."""

from matplotlib.figure import Figure

from harness.evaluation.sweep_record import TARGETS, Sweep
from harness.report import sweep as report
from harness.report.figures.picture import Picture, picture
from harness.report.figures.style import BOUND_LINE, legend_below, log_ticks, looks, token_axis, two_panels

TICKS = (2, 8, 24, 100, 400, 1500, 6000, 32768)


def data(sweep: Sweep) -> dict:
    """What is drawn: kind of routing -> [[T, ms, ms over the target]], of right answers to at least one token."""
    timed = [p for p in sweep.points if p.error is None and p.tokens > 0]
    return {kind: [[p.tokens, p.ms, p.ms / p.target_ms] for p in timed if p.kind == kind] for kind in sweep.kinds}


def draw(found: dict, target: str, title: str, below: str) -> Figure:
    """Two plots side by side over log T; target: its formula; below: small print."""
    figure, (left, right) = two_panels(title)
    appearance = looks(found)
    for kind, points in found.items():
        tokens, ms, over_target = zip(*points, strict=True) if points else ((), (), ())
        left.plot(tokens, ms, label=kind, **appearance[kind])
        right.plot(tokens, over_target, **appearance[kind])
    right.axhline(1, **BOUND_LINE)
    left.set(yscale="log", ylabel="latency, ms")
    right.set(ylabel=f"times the target, {target} ms", ylim=(0, None))
    for axes in (left, right):
        token_axis(axes, (point[0] for points in found.values() for point in points), TICKS)
    log_ticks(left.yaxis)
    legend_below(figure, left, below)
    return figure


def pictures(sweeps: list[Sweep]) -> list[Picture]:
    """One for each solution."""
    return [
        picture(
            f"sweep-{sweep.head.solution}.svg",
            draw,
            data(sweep),
            TARGETS[sweep.head.target].words,
            sweep.head.solution,
            report.origin(sweep),
        )
        for sweep in sweeps
    ]

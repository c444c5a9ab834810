"""Figure: a solution's latency over its target for each kind of routing, over the number of tokens."""

from matplotlib.figure import Figure

from harness.judging.sweep_record import TARGETS, Sweep
from harness.report import sweep as report
from harness.report.figures import style
from harness.report.figures.picture import Picture

KINDS = {
    "real": "popularity of experts as in the workloads",
    "uniform": "all experts equally popular",
    "one": "all tokens on one expert",
    "none": "no token has a local expert",
}
TICKS = (0, 4, 16, 32, 80, 256, 1024, 4096, 32768)  # as many as there is room for


def data(sweep: Sweep) -> dict:
    """What is drawn: kind of routing -> [[T, ms over target, bound over target]], of right answers."""
    timed = [p for p in sweep.points if p.error is None]
    return {
        kind: [[p.tokens, p.ms / p.target_ms, p.bound_ms / p.target_ms] for p in timed if p.kind == kind]
        for kind in sweep.kinds
    }


def draw(found: dict, solution: str, target: str, small_print: str) -> Figure:
    """found as `data` returns it, with at least one point; target: its formula."""
    figure = style.new(f"{solution} over kinds of routing", 6.4, small_print)
    grid = figure.subplots(-(-len(found) // 2), 2, sharex=True, sharey=True, squeeze=False)
    tokens = [t for points in found.values() for t, _, _ in points]
    for axes, (kind, points) in zip(grid.flat, found.items(), strict=False):
        places = style.token_axis(axes, tokens, TICKS)
        x, y, bound = [places[t] for t, _, _ in points], [y for _, y, _ in points], [y for _, _, y in points]
        axes.fill_between(x, bound, **style.BEYOND)
        axes.plot(x, bound, label="roofline bound / target", **style.BOUND_LINE)
        axes.axhline(1, label=f"target: {target} ms", color=style.INK, linewidth=1)
        axes.plot(x, y, label="latency / target", **style.look(solution, size=4))
        axes.set(title=f"{kind}: {KINDS[kind]}", ylabel="latency / target (1 = met)")
        axes.label_outer()
    grid[0, 0].set_ylim(0, None)
    grid[0, 0].legend(loc="upper left", reverse=True)
    return figure


def pictures(sweeps: list[Sweep]) -> list[Picture]:
    """One for each solution."""
    made = []
    for sweep in sweeps:
        name, target = sweep.head.solution, TARGETS[sweep.head.target].words
        made.append(Picture(f"sweep-{name}.svg", draw, (data(sweep), name, target, report.origin(sweep))))
    return made

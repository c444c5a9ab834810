"""Figure: roofline, what each solution achieves on each workload against what memory and tensor cores allow."""

from operator import itemgetter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.operators.roofline import BYTES_PER_SECOND, FLOPS_PER_SECOND
from harness.report.figures import style
from harness.report.figures.picture import Picture, of_run_groups
from harness.results.comparison import Comparison, RunGroup

SHARES = (0.5, 0.25)
RIDGE = FLOPS_PER_SECOND / BYTES_PER_SECOND  # FLOP per byte
NAMED = (1, 7, 57, 901, 14107)  # token counts whose points are named


def data(group: RunGroup) -> dict:
    """What is drawn: solution -> [[T, FLOP per byte, FLOP/s, share of the roof]], of cells that count, by T.

    Without workloads whose bound is not known.
    """
    found = {}
    for row in group.rows:
        info = row.workload
        for cell in row.cells.values():
            if cell.counts and info.bound_ms is not None:
                achieved = info.flops / (cell.latency_ms * 1e-3)
                point = [info.seq_len, info.flops / info.bytes, achieved, info.bound_ms / cell.latency_ms]
                found.setdefault(cell.solution, []).append(point)
    return found


def beside(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], ha: str) -> None:
    box = {"facecolor": style.GROUND, "alpha": 0.7, "edgecolor": "none", "pad": 0.6}
    axes.annotate(text, at, offset, textcoords="offset points", va="center", ha=ha, color=style.FAINT, bbox=box)


def draw_roof(axes: Axes, low: float, high: float) -> None:
    """The roof from low to high FLOP per byte, and shares of it, in TFLOP/s."""
    intensity = np.geomspace(low, high, 400)
    roof = np.minimum(intensity * BYTES_PER_SECOND, FLOPS_PER_SECOND) / 1e12
    axes.fill_between(intensity, roof, 10 * roof.max(), **style.BEYOND)
    axes.plot(intensity, roof, color=style.INK)
    for share in SHARES:
        axes.plot(intensity, roof * share, color=style.FAINT, linewidth=0.8, linestyle=(0, (3, 3)))
        beside(axes, f"{share:.0%}", (RIDGE, roof[-1] * share), (-2, 6), "right")
    beside(axes, f"tensor cores: {FLOPS_PER_SECOND / 1e12:.0f} TFLOP/s", (RIDGE, roof[-1]), (-8, 8), "right")
    beside(axes, f"memory: {BYTES_PER_SECOND / 1e12:.2f} TB/s", (30, 30 * BYTES_PER_SECOND / 1e12), (-8, 6), "right")


def name_tokens(axes: Axes, points: list[list]) -> None:
    """Say which T is where, once for all solutions: left of the points at the left edge, else above the roof."""
    leftmost = min(point[1] for point in points)
    for seq_len in NAMED:
        mine = [(x, achieved / 1e12, achieved / share / 1e12) for t, x, achieved, share in points if t == seq_len]
        if mine and mine[0][0] < 1.05 * leftmost:
            beside(axes, f"T={seq_len}", max(mine, key=itemgetter(1))[:2], (-7, 0), "right")
        elif mine:
            beside(axes, f"T={seq_len}", mine[0][::2], (-2, 8), "right")


def draw(found: dict, title: str, small_print: str) -> Figure:
    """found as `data` returns it, with a solution."""
    figure = style.new(title, 4.6, small_print)
    axes = figure.subplots()
    points = [point for of_one in found.values() for point in of_one]
    _, intensities, flops, _ = zip(*points, strict=True)
    low, high = min(intensities) / 2.2, max(max(intensities) * 1.8, 2 * RIDGE)
    draw_roof(axes, low, high)
    for at, name in enumerate(sorted(found, key=lambda name: np.mean([share for *_, share in found[name]]))):
        # The fastest on top, and smallest, as in the figure of speeds.
        _, intensity, achieved, _ = np.transpose(found[name])
        axes.plot(intensity, achieved / 1e12, **style.look(name, size=max(8 - 0.6 * at, 4)) | {"linestyle": "none"})
    name_tokens(axes, points)
    axes.set(xscale="log", xlabel="FLOP per byte that has to be moved", xlim=(low, high))
    axes.set(yscale="log", ylabel="achieved TFLOP/s", ylim=(min(flops) / 1.8e12, FLOPS_PER_SECOND / 1e12 * 1.8))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    ends = {name: (of_one[-1][1], of_one[-1][2] / 1e12) for name, of_one in found.items()}
    style.label_ends(axes, ends)
    return figure


def pictures(comparison: Comparison) -> list[Picture]:
    """One for each run group that has a timed solution and a bound."""
    return of_run_groups(comparison, "roofline-{}.svg", "Roofline", data, draw)

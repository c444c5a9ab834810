"""Figure: roofline, what each solution achieves on each workload against what memory and tensor cores allow."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from harness.operators.roofline import BYTES_PER_SECOND, FLOPS_PER_SECOND
from harness.report.figures import style
from harness.report.figures.picture import Picture, conditions, run_groups
from harness.report.figures.style import FAINT, looks
from harness.results.comparison import Comparison, RunGroup

SHARES = (0.5, 0.25)
RIDGE = FLOPS_PER_SECOND / BYTES_PER_SECOND  # FLOP per byte


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
    box = {"facecolor": style.GROUND, "alpha": 0.75, "edgecolor": "none", "pad": 0.8}
    axes.annotate(text, at, xytext=offset, textcoords="offset points", va="center", ha=ha, bbox=box)


def draw_roof(axes: Axes, low: float, high: float) -> None:
    """The roof from low to high FLOP per byte, and shares of it, in TFLOP/s."""
    intensity = np.geomspace(low, high, 400)
    roof = np.minimum(intensity * BYTES_PER_SECOND, FLOPS_PER_SECOND) / 1e12
    axes.fill_between(intensity, roof, 10 * roof.max(), **style.BEYOND)
    axes.plot(intensity, roof, color=style.INK)
    for share in SHARES:
        axes.plot(intensity, roof * share, color=FAINT, linewidth=0.9, linestyle=(0, (3, 3)))
        beside(axes, f"{share:.0%}", (RIDGE, roof[-1] * share), (2, 7), "left")
    beside(axes, f"tensor cores: {FLOPS_PER_SECOND / 1e12:.0f} TFLOP/s", (RIDGE, roof[-1]), (-4, 9), "right")
    beside(axes, f"memory: {BYTES_PER_SECOND / 1e12:.2f} TB/s", (30, 30 * BYTES_PER_SECOND / 1e12), (-8, 6), "right")


def name_tokens(axes: Axes, points: list[list]) -> None:
    """Say which T is where, once for all solutions: left of the points at the left edge, else below the lowest."""
    leftmost = min(point[1] for point in points)
    for seq_len in style.NAMED:
        mine = [(x, flops / 1e12) for t, x, flops, _ in points if t == seq_len]
        if mine and mine[0][0] < 1.05 * leftmost:
            beside(axes, f"T={seq_len}", max(mine), (-8, 0), "right")
        elif mine:
            beside(axes, f"T={seq_len}", min(mine), (4, -13), "center")


def draw(found: dict, title: str, below: str) -> Figure:
    """Roofline, and beside it the share of the roof over log T; found as `data` returns it, with a solution."""
    figure, (axes, share_axes) = style.two_panels(title)
    points = [point for of_one in found.values() for point in of_one]
    tokens, intensities, flops, shares = zip(*points, strict=True)
    low, high = min(intensities) / 2.2, max(max(intensities) * 1.8, 2 * RIDGE)
    draw_roof(axes, low, high)
    for name, appearance in looks(found).items():
        t, intensity, achieved, share = np.transpose(found[name])
        axes.plot(intensity, achieved / 1e12, label=name, **appearance | {"linestyle": "none"})
        share_axes.plot(t, share, **appearance)
    name_tokens(axes, points)
    axes.set(xscale="log", xlabel="FLOP per byte that has to be moved", xlim=(low, high))
    axes.set(yscale="log", ylabel="achieved TFLOP/s", ylim=(min(flops) / 1.8e12, FLOPS_PER_SECOND / 1e12 * 1.8))
    style.log_ticks(axes.xaxis)
    style.log_ticks(axes.yaxis)
    style.token_axis(share_axes, tokens)
    share_axes.set(ylabel="share of the roof", ylim=(0, max(1, 1.05 * max(shares))))
    share_axes.yaxis.set_major_formatter(PercentFormatter(1))
    style.legend_below(figure, axes, below)
    return figure


def pictures(comparison: Comparison) -> list[Picture]:
    """One for each run group that has a timed solution and a bound."""
    made = []
    for section, group, where in run_groups(comparison):
        if found := data(group):
            title = f"Roofline, {section.hardware}, {group.tolerance}"
            made.append(Picture(f"roofline-{where}.svg", draw, (found, title, conditions(section, group))))
    return made

"""Figure: roofline, what each solution achieves on each workload against what memory and tensor cores allow."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from harness.operators.roofline import BYTES_PER_SECOND, FLOPS_PER_SECOND
from harness.report.figures.picture import Picture, picture, run_groups
from harness.report.figures.style import FAINT, GROUND, INK, legend_below, log_ticks, looks, token_axis, two_panels
from harness.results.comparison import Comparison, RunGroup

NAMED = (1, 7, 57, 901, 14107)
SHARES = (0.5, 0.25)


def data(group: RunGroup) -> dict:
    """What is drawn: solution -> [[T, FLOP per byte, FLOP/s, share of the roof]], of cells that count, by T.

    Without workloads whose bound is not known.
    """
    found = {}
    for row in group.rows:
        info = row.workload
        if info.bound_ms is None:
            continue
        for cell in row.cells.values():
            if cell.counts:
                achieved = info.flops / (cell.latency_ms * 1e-3)
                point = [info.seq_len, info.flops / info.bytes, achieved, info.bound_ms / cell.latency_ms]
                found.setdefault(cell.solution, []).append(point)
    return found


def beside(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **kwargs) -> None:
    box = {"facecolor": GROUND, "alpha": 0.75, "edgecolor": "none", "pad": 0.8}
    axes.annotate(text, at, xytext=offset, textcoords="offset points", va="center", bbox=box, **kwargs)


def draw_roof(axes: Axes, low: float, high: float) -> None:
    """The roof from low to high FLOP per byte, and shares of it, in TFLOP/s."""
    intensity = np.geomspace(low, high, 400)
    roof = np.minimum(intensity * BYTES_PER_SECOND, FLOPS_PER_SECOND) / 1e12
    axes.fill_between(intensity, roof, 10 * roof.max(), color=FAINT, alpha=0.16, linewidth=0)
    axes.plot(intensity, roof, color=INK)
    ridge = FLOPS_PER_SECOND / BYTES_PER_SECOND
    for share in SHARES:
        axes.plot(intensity, roof * share, color=FAINT, linewidth=0.9, linestyle=(0, (3, 3)))
        axes.annotate(f"{share:.0%}", (ridge, roof[-1] * share), xytext=(2, 4), textcoords="offset points")
    axes.annotate(
        f"tensor cores: {FLOPS_PER_SECOND / 1e12:.0f} TFLOP/s",
        (ridge, roof[-1]),
        xytext=(-4, 6),
        textcoords="offset points",
        ha="right",
    )
    x, y = 10, 10 * BYTES_PER_SECOND / 1e12 * 1.2
    axes.text(
        x,
        y,
        f"memory: {BYTES_PER_SECOND / 1e12:.2f} TB/s",
        rotation=math.degrees(math.atan(y / x)),  # parallel to the roof; matplotlib turns it to the angle on the page
        rotation_mode="anchor",
        transform_rotates_text=True,
    )


def name_tokens(axes: Axes, points: list[list]) -> None:
    """Say which T is where, once for all solutions: left of the points at the left edge, else below the lowest."""
    leftmost = min(point[1] for point in points)
    for seq_len in NAMED:
        mine = [(x, flops / 1e12) for t, x, flops, _ in points if t == seq_len]
        if mine and mine[0][0] < 1.05 * leftmost:
            beside(axes, f"T={seq_len}", max(mine), (-8, 0), ha="right")
        elif mine:
            beside(axes, f"T={seq_len}", min(mine), (4, -13), ha="center")


def draw(found: dict, title: str) -> Figure:
    """Roofline, and beside it the share of the roof over log T; found as `data` returns it, with a solution."""
    figure, (axes, share_axes) = two_panels(title, width_ratios=(1.25, 1))
    points = [point for of_one in found.values() for point in of_one]
    low = min(point[1] for point in points) / 2.2
    high = max(max(point[1] for point in points) * 1.8, 2 * FLOPS_PER_SECOND / BYTES_PER_SECOND)
    draw_roof(axes, low, high)
    for name, appearance in looks(found).items():
        _, intensity, achieved, shares = zip(*found[name], strict=True)
        axes.plot(intensity, [flops / 1e12 for flops in achieved], label=name, **appearance | {"linestyle": "none"})
        share_axes.plot([point[0] for point in found[name]], shares, **appearance)
    name_tokens(axes, points)
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte that has to be moved", ylabel="achieved TFLOP/s")
    axes.set_xlim(low, high)
    axes.set_ylim(min(point[2] for point in points) / 1.8e12, FLOPS_PER_SECOND / 1e12 * 1.8)
    log_ticks(axes.xaxis)
    log_ticks(axes.yaxis)
    token_axis(share_axes, [point[0] for point in points])
    share_axes.set(ylabel="share of the roof", ylim=(0, max(1, 1.05 * max(point[3] for point in points))))
    share_axes.yaxis.set_major_formatter(PercentFormatter(1))
    legend_below(figure, axes)
    return figure


def pictures(comparison: Comparison, tolerance: str) -> list[Picture]:
    """One for each run group of the full FP8 layer that has a timed solution and a bound."""
    return [
        picture(f"roofline-{where}.svg", draw, found, f"Roofline, {section.hardware}, {group.tolerance}")
        for section, group, where in run_groups(comparison, tolerance)
        if (found := data(group))
    ]

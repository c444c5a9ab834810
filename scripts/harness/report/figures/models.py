"""Figure: each solution's latency over the roofline bound, over the number of tokens; a small plot for each model."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from harness.operators.models import layers
from harness.operators.roofline import MEASURED_ON
from harness.report.figures import speed, style

COLUMNS = 4
TICKS = (1, 16, 256, 4096)
LEVELS = (1, 2, 4, 8, 16, 32)
TOP = 32
EMPTY = (8192, 8)  # the axes' ends where nothing is drawn


def data(rows: pd.DataFrame) -> dict[str, dict[str, list[list]]]:
    """What is drawn: layer -> solution -> [[T, latency over the roofline bound]]; {} for a layer without traces."""
    here = rows[rows.hardware == MEASURED_ON]
    return {layer.name: speed.data(here[here.definition == layer.definition]) for layer in layers()}


def draw_panel(axes: Axes, name: str, curves: dict[str, list[list]]) -> None:
    axes.set_title(name)
    axes.axhline(1, **style.BOUND_LINE)
    axes.axhspan(0.5, 1, **style.BEYOND)
    if not curves:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=style.FAINT)
    for solution, points in sorted(curves.items(), key=lambda curve: -sum(y for _, y in curve[1])):
        few = {"markevery": max(1, len(points) // 2), "markersize": 4, "linewidth": 1.2}
        axes.plot(*zip(*points, strict=True), **style.look(solution) | few)


def draw(found: dict[str, dict[str, list[list]]], title: str, small_print: str) -> Figure:
    """found as `data` returns it. All panels have the same axes, so heights compare; the legend takes a free place."""
    rows = len(found) // COLUMNS + 1
    figure = style.new(title, 0.9 + 1.75 * rows, small_print)
    grid = figure.subplots(rows, COLUMNS, sharex=True, sharey=True)
    for axes, (name, curves) in zip(grid.flat, found.items(), strict=False):
        draw_panel(axes, name, curves)
    points = [point for of in found.values() for curve in of.values() for point in curve] or [EMPTY]
    longest, highest = map(max, zip(*points, strict=True))
    first, free = grid[0, 0], grid.flat[len(found) :]
    first.set(xscale="log", yscale="log", xlim=(0.8, 1.3 * longest), ylim=(0.8, min(1.1 * highest, TOP)))
    first.xaxis.set_major_locator(FixedLocator(TICKS))
    first.yaxis.set_major_locator(FixedLocator(LEVELS))
    for axis in (first.xaxis, first.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    for axes in free:
        axes.axis("off")
    for axes in grid[-2][COLUMNS - len(free) :]:  # no panel below
        axes.xaxis.set_tick_params(labelbottom=True)
    named = sorted({solution for of in found.values() for solution in of})
    keys = [Line2D([], [], label=name, **style.look(name)) for name in named]
    free[-1].legend(handles=[*keys, Line2D([], [], label="roofline bound", **style.BOUND_LINE)], loc="center")
    figure.supylabel("latency / roofline bound", fontsize=9)
    return figure


def figure(rows: pd.DataFrame) -> Figure:
    """rows: of every definition."""
    small_print = f"From left to right T, tokens in a call; both axes are logarithmic. Above {TOP} nothing is drawn."
    return draw(data(rows), f"Latency over the roofline bound of each model's layer: {MEASURED_ON}", small_print)

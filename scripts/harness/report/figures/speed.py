"""Figure: how many times the roofline bound every solution takes, over the number of tokens."""

import textwrap
from statistics import mean

import pandas as pd
from matplotlib.figure import Figure

from harness.report.comparison import provenance
from harness.report.figures import style
from harness.results.summary import SHOWN


def data(cells: pd.DataFrame) -> dict[str, list[list]]:
    """What is drawn: solution -> [[T, latency over the roofline bound]], by T, of rows at relaxed that count."""
    rows = cells[(cells.tolerance == SHOWN) & cells.counts & cells.over_bound.notna()].sort_values("tokens")
    return {
        name: [list(point) for point in zip(of.tokens, of.over_bound, strict=True)]
        for name, of in rows.groupby("solution")
    }


def figure(cells: pd.DataFrame) -> Figure:
    """cells: rows of one definition on one GPU."""
    found, title = data(cells), f"How many times the roofline bound: {cells.hardware.iloc[0]}, {SHOWN} tolerance"
    drawn = style.new(title, 5.0, textwrap.fill(f"{cells.definition.iloc[0]}; {provenance(cells)}", 160))
    axes = drawn.subplots()
    places = style.token_axis(axes, [t for points in found.values() for t, _ in points])
    curves = {name: {places[t]: times for t, times in points} for name, points in found.items()}
    for at, name in enumerate(sorted(curves, key=lambda name: -mean(curves[name].values()))):
        # The fastest on top; where curves coincide the rims of the others show.
        axes.plot(*zip(*curves[name].items(), strict=True), **style.look(name, size=max(7.5 - 0.5 * at, 4)))
    axes.set(ylabel="latency / roofline bound (lower is better)")
    style.linear_from_one(axes, curves)
    lacking = {name: f"{name} ({len(p)}/{len(places)})" for name, p in curves.items() if len(p) < len(places)}
    style.label_ends(axes, {name: list(points.items())[-1] for name, points in curves.items()}, lacking)
    return drawn

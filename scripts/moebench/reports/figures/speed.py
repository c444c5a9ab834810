"""Figure: how many times the roofline bound every solution takes, over the number of tokens."""

import textwrap
from statistics import mean

import pandas as pd
from matplotlib.figure import Figure

from moebench.reports.comparison import provenance
from moebench.reports.figures import style
from moebench.results.summary import SHOWN


def figure(cells: pd.DataFrame) -> Figure:
    """cells: rows of one definition on one GPU."""
    rows = cells[(cells.tolerance == SHOWN) & cells.counts & cells.over_bound.notna()].sort_values(
        "tokens"
    )
    title = f"How many times the roofline bound: {cells.hardware.iloc[0]}, {SHOWN} tolerance"
    drawn = style.new(
        title, 5.0, textwrap.fill(f"{cells.definition.iloc[0]}; {provenance(cells)}", 160)
    )
    axes = drawn.subplots()
    places, by_name = style.token_axis(axes, rows.tokens), rows.groupby("solution")
    curves = {
        name: dict(zip(of.tokens.map(places), of.over_bound, strict=True)) for name, of in by_name
    }
    for at, name in enumerate(sorted(curves, key=lambda name: -mean(curves[name].values()))):
        points, look = curves[name], style.look(name, size=max(7.5 - 0.5 * at, 4))
        label = name if len(points) == len(places) else f"{name} ({len(points)}/{len(places)})"
        # The fastest on top; where curves coincide the rims of the others show.
        axes.plot(*zip(*points.items(), strict=True), label=label, **look)
    axes.set(ylabel="latency / roofline bound, up to 10 (lower is better)")
    style.bound_axis(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return drawn

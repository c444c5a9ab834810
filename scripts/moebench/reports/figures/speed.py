"""Figure: how many times the roofline bound every solution takes, over the number of tokens."""

import textwrap
from statistics import mean

import pandas as pd
from matplotlib.figure import Figure

from moebench.reports.comparison import provenance
from moebench.reports.figures import style
from moebench.reports.versions import TIMED
from moebench.results.summary import SHOWN

SMALL_PRINT = 160  # characters in a line


def figure(rows: pd.DataFrame) -> Figure:
    """Return a curve for each solution. rows: of one definition on one GPU."""
    shown = rows[(rows.tolerance == SHOWN) & rows.counts & rows.over_bound.notna()]
    timed = TIMED[rows.clock.iloc[0]]
    where = f"{rows.hardware.iloc[0]}, {SHOWN} tolerance, {timed}"
    title = f"How many times the roofline bound: {where}"
    origin = f"{rows.definition.iloc[0]}; {provenance(rows)}"
    drawn = style.new(title, 5.0, textwrap.fill(origin, SMALL_PRINT))

    axes = drawn.subplots()
    places = style.token_axis(axes, shown.tokens)
    for at, (name, curve) in enumerate(curves(shown).items()):
        label = name if len(curve) == len(places) else f"{name} ({len(curve)}/{len(places)})"
        look = style.look(name, size=max(7.5 - 0.5 * at, 4))
        axes.plot([places[tokens] for tokens in curve], list(curve.values()), label=label, **look)

    axes.set(ylabel="latency / roofline bound, up to 10 (lower is better)")
    style.bound_axis(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return drawn


def curves(rows: pd.DataFrame) -> dict[str, dict[int, float]]:
    """Return solution -> T -> times the bound, the fastest last.

    It is drawn on top; where curves coincide the rims of the others' larger marks show.
    """
    by_name = {}
    for name, of_solution in rows.sort_values("tokens").groupby("solution"):
        by_name[name] = dict(zip(of_solution.tokens, of_solution.over_bound, strict=True))
    slowest_first = sorted(by_name, key=lambda name: -mean(by_name[name].values()))
    return {name: by_name[name] for name in slowest_first}

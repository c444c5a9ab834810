"""Figure: how many times the roofline bound every solution takes, over the number of tokens."""

import textwrap

import pandas as pd
from matplotlib.figure import Figure

from moebench.reports.figures import style
from moebench.reports.measured_with import TIMED, in_full
from moebench.results.summary import SHOWN_TOLERANCE, counted

SMALL_PRINT = 160  # characters in a line
# points; each curve's marks are smaller than those of the curve below it
LARGEST_MARK = 7.5
SMALLEST_MARK = 4


def figure(rows: pd.DataFrame) -> Figure:
    """Return a curve for each solution. rows: of one definition on one GPU."""
    shown = counted(rows).dropna(subset="over_bound")
    gpu = rows.hardware.iloc[0]
    timed = TIMED[rows.clock.iloc[0]]
    title = f"How many times the roofline bound: {gpu}, {SHOWN_TOLERANCE} tolerance, {timed}"
    origin = f"{rows.definition.iloc[0]}; {in_full(rows)}"
    drawn = style.new(title, 5.0, textwrap.fill(origin, SMALL_PRINT))

    axes = drawn.subplots()
    places = style.token_axis(axes, shown.tokens)
    size = LARGEST_MARK
    # The fastest solution is drawn last, on top. Where curves coincide, rims of larger marks show.
    last_of_tokens = shown.drop_duplicates(["solution", "tokens"], keep="last")
    by_tokens = last_of_tokens.sort_values("tokens")
    by_solution = [curve for _, curve in by_tokens.groupby("solution")]
    for curve in sorted(by_solution, key=lambda curve: -curve.over_bound.mean()):
        look = style.look(curve.solution.iloc[0], max(size, SMALLEST_MARK))
        label = curve_label(curve, len(places))
        axes.plot(curve.tokens.map(places), curve.over_bound, label=label, **look)
        size -= 0.5

    axes.set(ylabel="latency / roofline bound, up to 10 (lower is better)")
    style.bound_axis(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return drawn


def curve_label(curve: pd.DataFrame, token_counts: int) -> str:
    """Return the solution's name, and "(12/19)" if it was not timed at all token counts."""
    name = curve.solution.iloc[0]
    if len(curve) == token_counts:
        return name
    return f"{name} ({len(curve)}/{token_counts})"

"""How every figure looks: legible in print and, on a near-white ground of its own, in dark mode."""

import io
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

GROUND = "#fcfcfa"
INK = "#222222"
FAINT = "#8a8a8a"
# Okabe and Ito's colour-blind safe palette; markers and dashes differ too, for print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6a4c93")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1)), (0, (1, 2)))
BOUND_LINE = {"color": INK, "linewidth": 1.2, "linestyle": (0, (2, 2))}
BEYOND = {"color": FAINT, "alpha": 0.16, "linewidth": 0}  # fills what the hardware cannot reach
NAMED = (1, 7, 57, 901, 14107)  # token counts that figures name, as the tables do
FONT = "DejaVu Sans"  # ships with matplotlib, so every machine leaves the same room for the text
FONTS = "'DejaVu Sans', Verdana, Arial, sans-serif"  # the viewer's choice; no wider than the first
SETTINGS = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), GROUND),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "figure.titlesize": 11,
    "axes.titlesize": 11,
    "font.family": FONT,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "moe-fp8-block-scale",
}


class Panel(NamedTuple):
    """A plot over log T of the values in a column. Its axis is logarithmic, or begins at 0 and 1 is marked."""

    column: int
    label: str
    log: bool = True
    more_is_better: bool = False


def looks(names: Iterable[str]) -> dict[str, dict]:
    """Line2D's properties for each name, the same in every picture of the same names."""
    found = {}
    for at, name in enumerate(sorted(set(names))):
        # The second round has other markers and dashes to its colours than the first.
        kind = (at + at // len(COLOURS)) % len(MARKERS)
        found[name] = {
            "color": COLOURS[at % len(COLOURS)],
            "marker": MARKERS[kind],
            "linestyle": DASHES[kind],
            # Where curves coincide the rims of the earlier ones show.
            "markersize": max(8.5 - 1.3 * at, 5.5),
            "markeredgecolor": "white",
            "markeredgewidth": 0.6,
        }
    return found


def log_ticks(axis: Axis) -> None:
    """Plain numbers at 1, 2 and 5 of each decade of a log axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def token_axis(axes: Axes, present: Iterable[int]) -> None:
    """T as a log x axis with ticks at token counts that are present, NAMED ones first, where they do not touch."""
    ticks = []
    for t in sorted(set(present), key=lambda t: (t not in NAMED, t)):
        if all(max(t, other) >= 3 * min(t, other) for other in ticks):
            ticks.append(t)
    axes.set(xscale="log", xlabel="T, tokens")
    axes.set_xticks(ticks, map(str, ticks))
    axes.xaxis.set_minor_locator(NullLocator())


def two_panels(title: str) -> tuple[Figure, tuple[Axes, Axes]]:
    """A figure with two plots side by side."""
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    figure.suptitle(title)
    return figure, figure.subplots(1, 2)


def legend_below(figure: Figure, axes: Axes, small_print: str) -> None:
    """What the axes' curves are, below the plots, and the small print above it."""
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), title=small_print)
    legend.get_title().set(fontsize=8, ha="center")


def over_tokens(found: dict[str, list[list]], panels: tuple[Panel, Panel], title: str, small_print: str) -> Figure:
    """Two plots side by side over log T.

    found: curve -> [[T, a value for each further column, or None]]. The curve "bound", which may be empty, is the
    roofline bound: in a panel with a log axis what lies beyond it, and so cannot be reached, is shaded.
    """
    figure, both = two_panels(title)
    appearance = looks(set(found) - {"bound"})
    for axes, panel in zip(both, panels, strict=True):
        drawn = []
        for name, points in found.items():
            points = [(point[0], point[panel.column]) for point in points if point[panel.column] is not None]
            tokens, values = [t for t, _ in points], [value for _, value in points]
            if name != "bound":
                axes.plot(tokens, values, label=name, **appearance[name])
            elif points and panel.log:
                axes.plot(tokens, values, label="roofline bound", **BOUND_LINE)
                axes.fill_between(
                    tokens, values, 10 * max(values) if panel.more_is_better else min(values) / 10, **BEYOND
                )
            drawn += values
        token_axis(axes, [point[0] for points in found.values() for point in points])
        if panel.log:
            axes.set(yscale="log", ylabel=panel.label, ylim=(min(drawn) / 1.25, max(drawn) * 1.25))
            log_ticks(axes.yaxis)
        else:
            axes.axhline(1, **BOUND_LINE)
            axes.set(ylabel=panel.label, ylim=(0, None))
    legend_below(figure, both[0], small_print)
    return figure


def svg(draw: Callable[[], Figure], description: str) -> str:
    """The figure as SVG with this description and no date, whatever the user's matplotlibrc says."""
    out = io.StringIO()
    with matplotlib.style.context(SETTINGS, after_reset=True):
        FigureCanvasSVG(draw()).print_svg(out, metadata={"Date": None, "Description": description})
    return shortened(out.getvalue().replace(f"'{FONT}'", FONTS))


def shortened(text: str) -> str:
    """The same picture in a third of the bytes: hundredths of a point, one class a style, only ids that are used."""
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text)
    used = set(re.findall(r"#(\w+)[\")]", text))
    text = re.sub(r' id="(\w+)"', lambda found: found[0] if found[1] in used else "", text)
    styles = {}
    text = re.sub(r'style="([^"]*)"', lambda found: f'class="{styles.setdefault(found[1], f"c{len(styles)}")}"', text)
    rules = "".join(f".{name}{{{style}}}\n" for style, name in styles.items())
    text = text.replace("</style>", f"{rules}</style>", 1)
    return "".join(f"{line.strip()}\n" for line in text.splitlines())

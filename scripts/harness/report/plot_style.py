"""How every picture looks: legible in print and, on a near-white ground of its own, in dark mode."""

import io
from collections.abc import Iterable
from contextlib import contextmanager

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

GROUND = "#fcfcfa"
INK = "#222222"
FAINT = "#8a8a8a"
# Okabe and Ito's colours, told apart in every kind of colour vision; markers and dashes differ too, for print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6a4c93")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1)), (0, (1, 2)))
TOKENS = (1, 7, 16, 57, 901, 14107)  # ticks that do not touch
SETTINGS = {
    "figure.facecolor": GROUND,
    "axes.facecolor": GROUND,
    "savefig.facecolor": GROUND,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same shapes on every machine
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "moe-fp8-block-scale",
}


@contextmanager
def style():
    """Draw inside, whatever the user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def looks(names: Iterable[str]) -> dict[str, dict]:
    """Line2D's properties for each name, the same in every picture of the same names."""
    found = {}
    for at, name in enumerate(sorted(set(names))):
        # The second round has other markers and dashes to its colours than the first.
        kind = at + at // len(COLOURS)
        found[name] = {
            "color": COLOURS[at % len(COLOURS)],
            "marker": MARKERS[kind % len(MARKERS)],
            "linestyle": DASHES[kind % len(DASHES)],
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
    axis.set_minor_formatter(NullFormatter())


def token_axis(axes: Axes, present: Iterable[int]) -> None:
    """T as a log x axis with ticks at some of those present."""
    axes.set(xscale="log", xlabel="T, tokens")
    axes.set_xticks(sorted(set(TOKENS) & set(present)) or sorted(set(present)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def svg(figure: Figure, description: str) -> str:
    """The figure as SVG with this description and no date."""
    out = io.StringIO()
    with style():
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Description": description})
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())

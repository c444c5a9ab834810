"""How every figure looks: legible in print and, on a near-white ground of its own, in dark mode."""

import io
import re
from collections.abc import Iterable
from contextlib import contextmanager

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

GROUND = "#fcfcfa"
INK = "#222222"
FAINT = "#8a8a8a"
# Okabe and Ito's colours, told apart in every kind of colour vision; markers and dashes differ too, for print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6a4c93")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1)), (0, (1, 2)))
BOUND_LINE = {"color": INK, "linewidth": 1.2, "linestyle": (0, (2, 2))}
TOKENS = (1, 7, 16, 57, 901, 14107)  # ticks that do not touch
FONT = "DejaVu Sans"  # ships with matplotlib, so every machine leaves the same room for the text
FONTS = "'DejaVu Sans', Verdana, Arial, sans-serif"  # the viewer's choice; no wider than the first
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
    "font.family": FONT,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "moe-fp8-block-scale",
}


@contextmanager
def settings():
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
    axis.set_minor_locator(NullLocator())


def token_axis(axes: Axes, present: Iterable[int], ticks: Iterable[int] = TOKENS) -> None:
    """T as a log x axis with ticks at those of `ticks` that are present, at all present ones if none is."""
    axes.set(xscale="log", xlabel="T, tokens")
    axes.set_xticks(sorted(set(ticks) & set(present)) or sorted(set(present)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def two_panels(title: str, **kwargs) -> tuple[Figure, list[Axes]]:
    """A figure with two plots side by side."""
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure, list(figure.subplots(1, 2, **kwargs))


def draw_bound(axes: Axes, points: list[tuple[float, float]], greater_is_better: bool = False) -> None:
    """The roofline bound as a dashed line, with what lies beyond it, and so cannot be reached, shaded."""
    if not points:
        return
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, label="roofline bound", **BOUND_LINE)
    beyond = 10 * max(ys) if greater_is_better else min(ys) / 10
    axes.fill_between(xs, ys, beyond, color=FAINT, alpha=0.16, linewidth=0)


def legend_below(figure: Figure, axes: Axes, small_print: str = "") -> None:
    """What the axes' curves are, below the plots, and the small print under it."""
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), title=small_print)
    legend.get_title().set(fontsize=8, ha="center")


def svg(figure: Figure, description: str) -> str:
    """The figure as SVG with this description and no date."""
    out = io.StringIO()
    with settings():
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Description": description})
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

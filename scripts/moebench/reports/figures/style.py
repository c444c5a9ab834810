"""How every figure looks: legible in print and, on a near-white ground of its own, in dark mode."""

import io
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from zlib import crc32

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from moebench.operators.catalogue import operator
from moebench.packing.manifest import read_manifest, solution_names, solutions_of

WIDTH = 838 / 96  # inches: GitHub's column, in which text then keeps its size
GROUND = "#fcfcfa"
INK = "#222222"
FAINT = "#6b6b6b"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
# (on a light ground, on a dark one); each has a contrast of at least 4.5 there
PALETTE = [
    ("#0a63c9", "#6db3ff"),
    ("#bd185f", "#ff92c1"),
    ("#0d7a54", "#52d3a2"),
    ("#8e35b5", "#d79dff"),
]
PALETTE += [
    ("#94650a", "#e6c04c"),
    ("#0c7288", "#50d1e6"),
    ("#4a5563", "#b7c1cd"),
    ("#c2410c", "#ff9c5f"),
]
PALETTE += [("#5d6b00", "#b9cc3a"), ("#7a3b1e", "#d99a78"), ("#4b3fbf", "#a9a0ff")]
BOUND_LINE = {"color": INK, "linewidth": 1.2, "linestyle": (0, (4, 2))}
BEYOND = {"color": FAINT, "alpha": 0.14, "linewidth": 0}  # fills what the hardware cannot reach
FONT = "DejaVu Sans"  # ships with matplotlib, so every machine leaves the same room for the text
FONTS = "'DejaVu Sans', Verdana, Arial, sans-serif"  # the viewer's choice; no wider than the first
SETTINGS = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), GROUND),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), FAINT),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "font.family": FONT,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "figure.titlesize": 11,
    "svg.fonttype": "none",
    "svg.hashsalt": "moe-fp8-block-scale",
}


def place(solution: str) -> int:
    """What chooses a solution's colour and mark: its place among those of its operator, the same in
    every figure.
    """
    if solution not in solution_names():
        return crc32(solution.encode())
    return solutions_of(operator(read_manifest(solution).definitions[0]).GEOMETRIES).index(solution)


def look(solution: str, size: float = 5) -> dict:
    """Line2D's properties. size: of the mark, in points."""
    return {
        "color": PALETTE[place(solution) % len(PALETTE)][0],
        "marker": MARKERS[place(solution) % len(MARKERS)],
        "linewidth": 1.4,
        "markersize": size,
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
    }


def new(title: str, height: float, small_print: str = "") -> Figure:
    """height: inches. The small print stands below the plots."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left")
    figure.supxlabel(small_print, fontsize=7.5, color=FAINT, x=0.01, ha="left")
    return figure


def token_axis(axes: Axes, tokens: Iterable[int]) -> dict[int, int]:
    """An x axis on which token counts stand side by side at equal distances; returns T -> x."""
    places = {t: at for at, t in enumerate(sorted(set(tokens)))}
    axes.set_xticks([*places.values()], [*map(str, places)], fontsize=7.5)
    axes.set(xlabel="T, tokens (at equal distances)", xlim=(-0.5, len(places) - 0.5))
    axes.grid(axis="x", visible=False)
    return places


def bound_axis(axes: Axes) -> None:
    """A logarithmic y axis of times the bound up to 10, on which what the hardware cannot reach is
    grey.
    """
    axes.set_yscale("log")
    ticks = (1, 1.2, 1.5, 2, 3, 5, 10)
    axes.set_yticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.set_ylim(0.9, 10)
    axes.axhline(1, **BOUND_LINE)
    axes.axhspan(0.9, 1, **BEYOND)
    axes.text(0.005, 0.99, "roofline bound", transform=axes.get_yaxis_transform(), va="top")


def settings() -> AbstractContextManager:
    """In which a figure is made and written, whatever the user's matplotlibrc says."""
    return matplotlib.style.context(SETTINGS, after_reset=True)


def values(figure: Figure) -> list:
    """All that a figure shows, as JSON can hold it: points, bars and texts, to 4 digits."""
    lines = [
        [[float(f"{x:.4g}") for x in row] for row in line.get_xydata()]
        for line in figure.findobj(Line2D)
    ]
    bars = [[float(f"{x:.4g}") for x in bar.get_bbox().bounds] for bar in figure.findobj(Rectangle)]
    return [lines, bars, [text.get_text() for text in figure.findobj(Text)]]


def svg(figure: Figure, description: str) -> str:
    """The figure as SVG with this description and no date; inside `settings`."""
    out = io.StringIO()
    FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Description": description})
    return shortened(out.getvalue().replace(f"'{FONT}'", FONTS))


def shortened(text: str) -> str:
    """The same picture in a third of the bytes: hundredths of a point, one class a style, only ids
    that are used.
    """
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(
        r' (?:d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text
    )
    used = set(re.findall(r"#(\w+)[\")]", text))
    text = re.sub(r' id="(\w+)"', lambda found: found[0] if found[1] in used else "", text)
    styles = {}
    text = re.sub(
        r'style="([^"]*)"',
        lambda found: f'class="{styles.setdefault(found[1], f"c{len(styles)}")}"',
        text,
    )
    rules = "".join(f".{name}{{{style}}}\n" for style, name in styles.items())
    text = text.replace("</style>", f"{rules}</style>", 1)
    return "".join(f"{line.strip()}\n" for line in text.splitlines())

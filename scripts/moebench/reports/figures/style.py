"""How a figure looks, beside report.mplstyle, and how it becomes an SVG.

speed.py draws with it, docs/generated.py writes with `settings`, `digest` and `svg`, and html.py
takes the colours.
"""

import hashlib
import io
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from zlib import crc32

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from moebench.operators.catalogue import operator
from moebench.packing.manifest import read_manifest, solution_names, solutions_of

SHEET = Path(__file__).with_name("report.mplstyle")
WIDTH = 838 / 96  # inches: GitHub's column, in which text then keeps its size
INK = "#222222"
FAINT = "#6b6b6b"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")

# Two shades of each colour: for the light ground of figures, and for a dark one, which the HTML
# page may have. Each has a contrast of at least 4.5 on its ground.
PALETTE = [
    ("#0a63c9", "#6db3ff"),
    ("#bd185f", "#ff92c1"),
    ("#0d7a54", "#52d3a2"),
    ("#8e35b5", "#d79dff"),
    ("#94650a", "#e6c04c"),
    ("#0c7288", "#50d1e6"),
    ("#4a5563", "#b7c1cd"),
    ("#c2410c", "#ff9c5f"),
    ("#5d6b00", "#b9cc3a"),
    ("#7a3b1e", "#d99a78"),
    ("#4b3fbf", "#a9a0ff"),
]
BOUND_LINE = {"color": INK, "linewidth": 1.2, "linestyle": (0, (4, 2))}
# fills what the hardware cannot reach
BEYOND = {"color": FAINT, "alpha": 0.14, "linewidth": 0}
BOUND_TICKS = (1, 1.2, 1.5, 2, 3, 5, 10)

FONT = "DejaVu Sans"
# In place of FONT, for viewers without it. None is wider, as texts were placed by FONT's widths.
VIEWER_FONTS = "'DejaVu Sans', Verdana, Arial, sans-serif"


def settings() -> AbstractContextManager:
    """Return a context to draw and write figures in, whatever the user's matplotlibrc says."""
    return matplotlib.style.context(SHEET, after_reset=True)


def look_number(solution: str) -> int:
    """Return the number that chooses a solution's colour and marker, the same in every figure.

    It is the solution's place among those of its operator, or a hash of the name of a solution that
    is not in this repository.
    """
    if solution not in solution_names():
        return crc32(solution.encode())
    first_definition = read_manifest(solution).definitions[0]
    layer_sizes = operator(first_definition).layer_sizes()
    return solutions_of(layer_sizes).index(solution)


def look(solution: str, size: float = 5) -> dict:
    """Return Line2D's properties for a solution. size: of its marker, in points."""
    number = look_number(solution)
    light, _ = PALETTE[number % len(PALETTE)]
    return {
        "color": light,
        "marker": MARKERS[number % len(MARKERS)],
        "linewidth": 1.4,
        "markersize": size,
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
    }


def new(title: str, height: float, small_print: str = "") -> Figure:
    """Return an empty figure. height: in inches; small_print: stands below the plots."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left")
    figure.supxlabel(small_print, fontsize=7.5, color=FAINT, x=0.01, ha="left")
    return figure


def token_axis(axes: Axes, tokens: Iterable[int]) -> dict[int, int]:
    """Make an x axis on which token counts stand at equal distances, and return T -> x."""
    counts = sorted(set(tokens))
    positions = range(len(counts))

    # so small that 19 counts of five digits fit side by side into WIDTH, beside a legend
    axes.set_xticks(positions, map(str, counts), fontsize=6.5)
    axes.set(xlabel="T, tokens (at equal distances)", xlim=(-0.5, len(counts) - 0.5))
    axes.grid(axis="x", visible=False)
    return dict(zip(counts, positions, strict=True))


def bound_axis(axes: Axes) -> None:
    """Make a logarithmic y axis of time / roofline bound, up to 10; below 1 it is grey."""
    axes.set_yscale("log")
    axes.set_yticks(BOUND_TICKS, map(str, BOUND_TICKS))
    axes.minorticks_off()
    axes.set_ylim(0.9, 10)
    axes.axhline(1, **BOUND_LINE)
    axes.axhspan(0.9, 1, **BEYOND)
    axes.text(
        0.005, 0.98, "roofline bound", transform=axes.get_yaxis_transform(), va="top"
    )


def digest(figure: Figure) -> str:
    """Return a hash of what a figure shows, and of the style sheet: points, texts and colours.

    The SVG itself differs among versions of matplotlib.
    """
    lines = []
    for line in figure.findobj(Line2D):
        points = [rounded(point) for point in line.get_xydata()]
        colour = to_hex(line.get_color())
        marker = [str(line.get_marker()), line.get_markersize()]
        lines.append([points, colour, line.get_linewidth(), *marker])
    texts = []
    for text in figure.findobj(Text):
        texts.append([text.get_text(), to_hex(text.get_color()), text.get_fontsize()])

    shown = json.dumps({"lines": lines, "texts": texts})
    return hashlib.sha256(shown.encode() + SHEET.read_bytes()).hexdigest()


def rounded(values: Iterable[float]) -> list[float]:
    """Return the numbers to 4 significant digits, in which all machines agree."""
    return [float(f"{value:.4g}") for value in values]


def svg(figure: Figure, description: str) -> str:
    """Return the figure as SVG with this description and no date; to be called in `settings`."""
    out = io.StringIO()
    FigureCanvasSVG(figure).print_svg(
        out, metadata={"Date": None, "Description": description}
    )
    return out.getvalue().replace(f"'{FONT}'", VIEWER_FONTS)

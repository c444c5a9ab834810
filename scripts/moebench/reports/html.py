"""The page of `moebench compare --html`: one file with a figure to hover over and a table to sort,
which needs no network.

`page` puts it together: page.css is its style, page.js its behaviour, plotly draws the figure. The
rows and plotly's library lie in the page compressed. page.js inflates them, and draws the figure
and the table of one definition, GPU and tolerance.
"""

import base64
import gzip
import json
from collections.abc import Iterable
from html import escape
from pathlib import Path

import pandas as pd
from plotly.offline import get_plotlyjs

from moebench.judging.tolerances import TOLERANCES
from moebench.reports.comparison import TIED_WORDS, gpus
from moebench.reports.figures.style import PALETTE, look_number
from moebench.reports.measured_with import conditions
from moebench.reports.table import one_line
from moebench.results.spread import SEVERAL_RUNS
from moebench.results.summary import SHOWN_TOLERANCE

FOLDER = Path(__file__).parent
SYMBOLS = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "x",
    "pentagon",
)

# Column of the rows -> its heading in the table. A narrow window shows the first SHOWN_IF_NARROW.
HEADINGS = {
    "tokens": "T",
    "solution": "solution",
    "ms": "ms",
    "over_bound": "times bound",
    "over_fastest": "times fastest",
    "runs": "runs",
    "ms_low": "least ms",
    "ms_high": "greatest ms",
    "status": "status",
    "speedup": "speed-up",
    "matched": "matched",
    "source": "source",
    "timestamp": "date",
}
SHOWN_IF_NARROW = 4
WORDS = ("solution", "status", "source", "timestamp")  # the other columns hold numbers

# columns with a menu above the figure
CHOSEN_BY = ("definition", "hardware", "tolerance")
# shown on hovering
DETAILS = ("tolerance_text", "conditions", "versions", "source_sha1", "place")

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Results</title>
<style>
{style}</style>
</head>
<body>
<h1>Latency of each solution</h1>
<form>
<label>definition <select id="definition"></select></label>
<label>GPU <select id="hardware"></select></label>
<label>tolerance <select id="tolerance"></select></label>
</form>
<p id="conditions" class="faint"></p>
<div id="figure"></div>
<p class="faint">Hover over a point for its details; a bar through it is the range of its runs.
Click a name beside the figure to hide its solution, a heading to sort. Rows in green: {tied}.
The address of this page keeps what is chosen.</p>
<div class="wide"><table>
<thead><tr>{heads}</tr></thead>
<tbody></tbody>
</table></div>
<script>
const PLOTLY = "{plotly}";
const RESULTS = "{results}";
{script}</script>
</body>
</html>
"""


def page(rows: pd.DataFrame) -> str:
    """Return the HTML of rows of `measurements.load`, of any definitions and GPUs."""
    heads = []
    for at, (column, heading) in enumerate(HEADINGS.items()):
        kinds = "" if column in WORDS else "number"
        if at >= SHOWN_IF_NARROW:
            kinds += " more"
        kinds = kinds.strip()
        button = f"<button>{escape(heading)}</button>"
        heads.append(f'<th class="{kinds}" data-column="{column}">{button}</th>')
    return PAGE.format(
        style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        tied=escape(TIED_WORDS),
        heads="".join(heads),
        plotly=compressed(get_plotlyjs()),
        results=compressed(results_json(rows)),
        script=(FOLDER / "page.js").read_text(encoding="utf-8"),
    )


def compressed(text: str) -> str:
    """Return a text as `inflate` in page.js reads it: gzip in base64, the same whenever made."""
    packed = gzip.compress(text.encode(), mtime=0)
    return base64.b64encode(packed).decode()


def results_json(rows: pd.DataFrame) -> str:
    """Return the JSON that page.js draws, an object with
    columns: names of columns;
    rows: a list of values for each row, the fastest first;
    orders: the definitions, GPUs and tolerances in the order of the menus;
    looks: solution -> colours and mark.
    """
    has_several_runs = rows.range_from == SEVERAL_RUNS
    measured_by = rows[["tolerance_text", "protocol", "clock"]].values.tolist()
    named = rows.assign(
        definition=rows.geometry.fillna(rows.definition),
        conditions=[conditions(*values) for values in measured_by],
        ms_low=rows.ms_low.where(has_several_runs),
        ms_high=rows.ms_high.where(has_several_runs),
    )
    columns = [*CHOSEN_BY, *HEADINGS, *DETAILS, "tied"]
    fastest_first = named[columns].sort_values("ms", kind="stable")

    orders = {
        "definition": distinct(named.definition),
        "hardware": distinct(gpus(rows)),
        "tolerance": distinct([SHOWN_TOLERANCE, *TOLERANCES, *rows.tolerance]),
    }
    content = {
        "columns": columns,
        "rows": [list(map(plain, row)) for row in fastest_first.values.tolist()],
        "orders": orders,
        "looks": {plain(name): look(name) for name in sorted(set(rows.solution))},
    }
    return json.dumps(content)


def distinct(texts: Iterable[str]) -> list[object]:
    """Return the texts in order, each once, as values for JSON."""
    return [plain(text) for text in dict.fromkeys(texts)]


def plain(value: object) -> object:
    """Return a value for JSON: None for NaN, a number with six digits, a text as one line."""
    if pd.isna(value):
        return None
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return one_line(value) if isinstance(value, str) else value


def look(solution: str) -> dict[str, object]:
    """Return a solution's colours, on a light and on a dark ground, and its mark in the figure."""
    number = look_number(solution)
    colours = PALETTE[number % len(PALETTE)]
    symbol = SYMBOLS[number % len(SYMBOLS)]
    return {"colours": colours, "symbol": symbol}

"""`compare --html`: one file with a figure to hover over and a table to sort, without network.

Its style is page.css, its behaviour page.js. What is large lies in it compressed, as text that
page.js inflates: plotly's library, the curves and the table's rows.
"""

import base64
import gzip
from html import escape
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from moebench.reports.comparison import LEVEL_WORDS, gpus
from moebench.reports.figures.style import PALETTE, place
from moebench.reports.table import one_line
from moebench.results.summary import shown_tolerance

FOLDER = Path(__file__).parent
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "pentagon")

# Column of the table -> its heading.
HEADINGS = {
    "definition": "definition",
    "hardware": "GPU",
    "tokens": "T",
    "solution": "solution",
    "tolerance": "tolerance",
    "status": "status",
    "ms": "ms",
    "over_bound": "times bound",
    "over_fastest": "times fastest",
    "speedup": "speed-up",
    "matched": "matched",
    "source": "source",
    "timestamp": "date",
    "place": "trace",
}
NUMBERS = ("tokens", "ms", "over_bound", "over_fastest", "speedup", "matched")

# What stands beside a point that the pointer is over: the columns HOVER_DATA, by their number.
HOVER_DATA = ["solution", "ms", "tolerance_text", "timestamp", "source_sha1", "source", "place"]
HOVER_BOUND = ", %{y:.2f} times the bound"
HOVER = (
    "<b>%{customdata[0]}</b>, T = %{x}<br>"
    f"%{{customdata[1]:.4f}} ms{HOVER_BOUND}<br>"
    "%{customdata[2]}<br>"
    "%{customdata[3]}<br>"
    "source %{customdata[4]}, %{customdata[5]}<br>"
    "%{customdata[6]}<extra></extra>"
)
AXES = {
    "xaxis": {"title": "T, tokens in a call", "type": "log"},
    "yaxis": {"title": "times the roofline bound (ms where there is none)", "type": "log"},
}

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Results</title>
<style>
{style}</style>
</head>
<body>
<h1>Results</h1>
<p><select id="section" aria-label="definition and GPU">
{options}
</select></p>
<div id="figure"></div>
<p class="faint">Points: {tolerance} tolerance; hover over one for its time, tolerance, date and
source. Rows in green: {level}. Click a heading to sort.</p>
<div class="wide"><table>
<thead><tr>{heads}</tr></thead>
<tbody></tbody>
</table></div>
<script>
const PLOTLY = "{plotly}";
const CURVES = "{curves}";
const ROWS = "{rows}";
{script}</script>
</body>
</html>
"""


def page(rows: pd.DataFrame) -> str:
    """Return the HTML of rows of `measurements.load`, of any definitions and GPUs."""
    names = rows.geometry.fillna(rows.definition) + " on " + rows.hardware
    numbers = {name: number for number, name in enumerate(sections(rows, names))}
    section = names.map(numbers)

    options = []
    for name, number in numbers.items():
        options.append(f'<option value="{number}">{shown(name)}</option>')
    heads = [f"<th><button>{shown(heading)}</button></th>" for heading in HEADINGS.values()]

    return PAGE.format(
        style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        plotly=compressed(get_plotlyjs()),
        options="\n".join(options),
        tolerance=shown(shown_tolerance(rows)),
        level=shown(LEVEL_WORDS),
        heads="".join(heads),
        rows=compressed("\n".join(table_rows(rows, section))),
        curves=compressed(curves(rows, section).to_json()),
        script=(FOLDER / "page.js").read_text(encoding="utf-8"),
    )


def compressed(text: str) -> str:
    """Return a text as page.js's `inflate` reads it: gzip in base64, the same for the same text."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def sections(rows: pd.DataFrame, names: pd.Series) -> list[str]:
    """Return the sections in the order of `gpus`, and of the definitions in the rows."""
    ordered = []
    for gpu in gpus(rows):
        ordered += dict.fromkeys(names[rows.hardware == gpu])
    return ordered


def shown(text: str) -> str:
    """Return a text of others for HTML: markup and control characters are shown, not obeyed."""
    return escape(one_line(text))


def table_rows(rows: pd.DataFrame, section: pd.Series) -> list[str]:
    """Return a <tr> for each row, with its section and whether it is level or stale."""
    lines = []
    values = rows[list(HEADINGS)].values.tolist()
    for row, number, cells in zip(rows.itertuples(), section, values, strict=True):
        kind = "level" if row.level else ""
        if row.source == "stale":
            kind = "stale"
        texts = [cell(name, value) for name, value in zip(HEADINGS, cells, strict=True)]
        lines.append(f'<tr class="{kind}" data-section="{number}">{"".join(texts)}</tr>')
    return lines


def cell(column: str, value: object) -> str:
    """Return a <td>; that of a number has four digits, and the whole number to sort by."""
    if column not in NUMBERS:
        return f"<td>{'' if pd.isna(value) else shown(str(value))}</td>"
    if pd.isna(value):
        return '<td class="number" data-value=""></td>'

    text = str(int(value)) if float(value).is_integer() else f"{value:.4g}"
    return f'<td class="number" data-value="{value}">{text}</td>'


def curves(rows: pd.DataFrame, section: pd.Series) -> go.Figure:
    """Return a curve for each section and solution: times the bound over T, or ms without bound."""
    timed = rows[rows.ms.notna() & (rows.tolerance == shown_tolerance(rows))]
    timed = timed.assign(section=section).sort_values("tokens")

    figure = go.Figure()
    for (number, name), curve in timed.groupby(["section", "solution"]):
        has_bound = curve.over_bound.notna().any()
        details = curve[HOVER_DATA].fillna("unknown").map(hover_value)
        figure.add_scatter(
            x=curve.tokens,
            y=curve.over_bound if has_bound else curve.ms,
            customdata=details.values,
            name=shown(name),
            meta={"section": int(number), "colours": PALETTE[place(name) % len(PALETTE)]},
            marker={"symbol": SYMBOLS[place(name) % len(SYMBOLS)], "size": 8},
            hovertemplate=HOVER if has_bound else HOVER.replace(HOVER_BOUND, ""),
        )
    return figure.update_layout(template="none", height=480, margin={"t": 20}, **AXES)


def hover_value(value: object) -> object:
    """Return a value for plotly, which takes a part of HTML in texts for markup."""
    return shown(value) if isinstance(value, str) else value

"""`compare --html`: one file with a figure to hover over and a table to sort, which needs no
network.
"""

from html import escape

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from moebench.reports.comparison import LEVEL_WORDS, gpus
from moebench.reports.figures.style import PALETTE, place
from moebench.results.summary import shown_of

SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "pentagon")
COLUMNS = [
    "definition",
    "hardware",
    "tokens",
    "solution",
    "tolerance",
    "status",
    "ms",
    "over_bound",
    "over_fastest",
]
COLUMNS += ["speedup", "matched", "source", "timestamp", "place"]
HEADINGS = {
    "hardware": "GPU",
    "tokens": "T",
    "over_bound": "times bound",
    "over_fastest": "times fastest",
}
HEADINGS |= {"speedup": "speed-up", "timestamp": "date", "place": "trace"}
BOUND = ", %{y:.2f} times the bound"
HOVER = f"<b>%{{customdata[0]}}</b>, T = %{{x}}<br>%{{customdata[1]:.4f}} ms{BOUND}<br>%{{customdata[2]}}"
HOVER += "<br>%{customdata[3]}<br>source %{customdata[4]}, %{customdata[5]}<br>%{customdata[6]}<extra></extra>"
STYLE = """
:root { color-scheme: light dark; --ground: #fcfcfa; --ink: #222; --faint: #6b6b6b; --line: #ddd; --best: #0d7a54 }
@media (prefers-color-scheme: dark) {
  :root { --ground: #16181c; --ink: #e8e8e6; --faint: #a0a0a0; --line: #3a3d42; --best: #52d3a2 }
}
body { background: var(--ground); color: var(--ink); font: 14px/1.4 system-ui, sans-serif; margin: 1.5rem }
h1 { font-size: 1.3rem } .faint { color: var(--faint) }
select { font: inherit; color: inherit; background: var(--ground); border: 1px solid var(--line); max-width: 100% }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap }
td.number { text-align: right } tr.level td { color: var(--best); font-weight: 600 } tr.stale td { color: var(--faint) }
th button { all: unset; cursor: pointer; font-weight: 600 } th button:focus-visible { outline: 2px solid currentColor }
"""
SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)"), figure = document.getElementById("figure");
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name);
function paint() {
  const axis = {gridcolor: css("--line"), linecolor: css("--line"), zerolinecolor: css("--line")};
  const traces = FIGURE.data.map(t => ({...t, line: {...t.line, color: t.meta.colours[+dark.matches]},
    marker: {...t.marker, color: t.meta.colours[+dark.matches]}, visible: t.meta.section === chosen.value}));
  const layout = {...FIGURE.layout, paper_bgcolor: css("--ground"), plot_bgcolor: css("--ground"),
    font: {color: css("--ink")}, xaxis: {...FIGURE.layout.xaxis, ...axis}, yaxis: {...FIGURE.layout.yaxis, ...axis}};
  Plotly.react(figure, traces, layout, {responsive: true, displaylogo: false});
  for (const row of body.rows) row.hidden = row.dataset.section !== chosen.value;
}
const chosen = document.getElementById("section"), body = document.querySelector("tbody");
chosen.onchange = paint; dark.onchange = paint; paint();
document.querySelectorAll("th").forEach((head, at) => head.firstChild.onclick = () => {
  const up = head.getAttribute("aria-sort") !== "ascending";
  document.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = row => row.cells[at].dataset.value, sign = up ? 1 : -1;
  const number = text => text === "" ? Infinity : Number(text);
  body.append(...[...body.rows].sort((a, b) => sign * (isNaN(key(a)) || isNaN(key(b))
    ? key(a).localeCompare(key(b)) : number(key(a)) - number(key(b)) || 0)));
});
"""


def sections(rows: pd.DataFrame) -> pd.Series:
    """What a viewer chooses among: a definition on a GPU."""
    return rows.geometry.fillna(rows.definition) + " on " + rows.hardware


def curves(rows: pd.DataFrame) -> go.Figure:
    """A curve for each definition, GPU and solution: times the bound over T; ms where there is no
    bound.
    """
    shown = rows[rows.ms.notna() & (rows.tolerance == shown_of(rows))].assign(section=sections)
    figure = go.Figure()
    for (section, name), of in shown.sort_values("tokens").groupby(["section", "solution"]):
        row = of[
            ["solution", "ms", "tolerance_text", "timestamp", "source_sha1", "source", "place"]
        ].fillna("unknown")
        dot = {"symbol": SYMBOLS[place(name) % len(SYMBOLS)], "size": 8}
        meta = {"section": section, "colours": PALETTE[place(name) % len(PALETTE)]}
        y, tip = (
            (of.over_bound, HOVER)
            if of.over_bound.notna().any()
            else (of.ms, HOVER.replace(BOUND, ""))
        )
        figure.add_scatter(
            x=of.tokens,
            y=y,
            customdata=row.values,
            name=name,
            meta=meta,
            marker=dot,
            hovertemplate=tip,
        )
    x = {"title": "T, tokens in a call", "type": "log"}
    y = {"title": "times the roofline bound (ms where there is none)", "type": "log"}
    return figure.update_layout(template="none", height=480, margin={"t": 20}, xaxis=x, yaxis=y)


def cell(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    known = "" if pd.isna(value) else str(value)
    shown = f"{value:.4g}" if number and known and not float(value).is_integer() else known
    kind = ' class="number"' if number else ""
    return f'<td{kind} data-value="{escape(known)}">{escape(shown.removesuffix(".0"))}</td>'


def page(rows: pd.DataFrame) -> str:
    """HTML of rows as `table.load` gives them, of any definitions and GPUs."""
    named = sections(rows)
    order = [name for gpu in gpus(rows) for name in dict.fromkeys(named[rows.hardware == gpu])]
    kinds = rows.source.where(rows.source == "stale", rows.level.map({True: "level", False: ""}))
    lines = [
        f'<tr class="{kind}" data-section="{escape(section)}">{"".join(map(cell, values))}</tr>'
        for kind, section, values in zip(kinds, named, rows[COLUMNS].values.tolist(), strict=True)
    ]
    options = "".join(f"<option>{escape(name)}</option>" for name in order)
    heads = "".join(
        f"<th><button>{escape(HEADINGS.get(name, name))}</button></th>" for name in COLUMNS
    )
    data = curves(rows).to_json().replace("</", "<\\/")  # a name must not end the script
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Results</title><style>{STYLE}</style><script>{get_plotlyjs()}</script></head>
<body><h1>Results</h1>
<p><select id="section" aria-label="definition and GPU">{options}</select></p>
<div id="figure"></div>
<p class="faint">Points: {shown_of(rows)} tolerance; hover over one for its time, tolerance, date and source.
Rows in green: {escape(LEVEL_WORDS)}. Click a heading to sort.</p>
<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>
<script>const FIGURE = {data};{SCRIPT}</script></body></html>
"""

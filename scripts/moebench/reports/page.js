// Defined before this script, each as gzip in base64: PLOTLY, the library; RESULTS, the JSON of
// html.py's `results`.
async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

const CHOICES = ["definition", "hardware", "tolerance"];

const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 700px)");
const figure = document.getElementById("figure");
const body = document.querySelector("tbody");
const heads = [...document.querySelectorAll("th")];

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name);

let rows;
let orders;
let looks;

// What is shown: a value for each of CHOICES, the column that the table is sorted by, whether the
// least comes first, and the solutions that the figure hides. The address holds it after the "#".
const view = {sort: "tokens", up: true, hidden: []};

function readAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  for (const choice of CHOICES) view[choice] = address.get(choice);

  const columns = heads.map(head => head.dataset.column);
  const sort = address.get("sort");
  view.sort = columns.includes(sort) ? sort : "tokens";
  view.up = address.get("order") !== "descending";
  view.hidden = address.getAll("hidden");
}

function writeAddress() {
  const address = new URLSearchParams();
  for (const choice of CHOICES) address.set(choice, view[choice]);
  address.set("sort", view.sort);
  if (!view.up) address.set("order", "descending");
  for (const solution of view.hidden) address.append("hidden", solution);
  history.replaceState(null, "", `#${address}`);
}

// Fills the lists, each with what was recorded for the choices before it. A choice that is not
// there becomes the first that is. Returns the chosen rows.
function choose() {
  let left = rows;
  for (const choice of CHOICES) {
    const recorded = new Set(left.map(row => row[choice]));
    const offered = orders[choice].filter(value => recorded.has(value));
    if (!recorded.has(view[choice])) view[choice] = offered[0];

    const list = document.getElementById(choice);
    list.replaceChildren(...offered.map(value => new Option(value, value)));
    list.value = view[choice];
    left = left.filter(row => row[choice] === view[choice]);
  }
  return left;
}

// Each distinct value of a column once.
const distinct = (chosen, column) => [...new Set(chosen.map(row => row[column]))];

function showConditions(chosen) {
  const days = chosen.map(row => row.timestamp.slice(0, 10)).sort();
  const dates = [...new Set([days[0], days[days.length - 1]])].join(" to ");
  const parts = ["conditions", "versions"].map(
    column => distinct(chosen, column).join(" or "));
  document.getElementById("conditions").textContent = [...parts, dates].join("; ");
}

// Plotly takes a part of HTML for markup.
function escaped(text) {
  const entities = {"&": "&amp;", "<": "&lt;", ">": "&gt;"};
  return String(text).replace(/[&<>]/g, letter => entities[letter]);
}

function rangeText(row) {
  if (row.ms_low === null) return "";
  return `, ${row.ms_low.toFixed(4)} to ${row.ms_high.toFixed(4)} ms in ${row.runs} runs`;
}

function hoverText(row) {
  const bound = row.over_bound === null ? "" : `, ${row.over_bound.toFixed(2)} times the bound`;
  const lines = [
    `${row.solution}, T = ${row.tokens}`,
    `${row.ms.toFixed(4)} ms${bound}${rangeText(row)}`,
    row.tolerance_text,
    row.timestamp,
    `source ${row.source_sha1 ?? "unknown"}, ${row.source}`,
    row.place,
  ];
  return lines.map(escaped).join("<br>");
}

// A solution's curve: times the bound over T, or ms where the GPU has no bound.
function curve(solution, points, hasBound) {
  const look = looks[solution];
  const color = look.colours[dark.matches ? 1 : 0];
  points.sort((one, other) => one.tokens - other.tokens);

  const height = row => hasBound ? row.over_bound : row.ms;
  const away = (row, ms) => ms === null ? 0 : Math.abs(ms / row.ms - 1) * height(row);
  return {
    name: escaped(solution),
    meta: solution,
    x: points.map(row => row.tokens),
    y: points.map(height),
    error_y: {
      array: points.map(row => away(row, row.ms_high)),
      arrayminus: points.map(row => away(row, row.ms_low)),
      thickness: 1,
      width: 3,
    },
    text: points.map(hoverText),
    hovertemplate: "%{text}<extra></extra>",
    mode: "lines+markers",
    line: {color},
    marker: {color, symbol: look.symbol, size: 8},
    visible: view.hidden.includes(solution) ? "legendonly" : true,
  };
}

function showFigure(chosen) {
  const timed = chosen.filter(row => row.ms !== null);
  const hasBound = timed.some(row => row.over_bound !== null);
  const solutions = distinct(timed, "solution").sort();
  const curves = solutions.map(
    solution => curve(solution, timed.filter(row => row.solution === solution), hasBound));

  const axis = {
    type: "log",
    gridcolor: css("--line"),
    linecolor: css("--line"),
    zerolinecolor: css("--line"),
    automargin: true,
    nticks: narrow.matches ? 6 : 12,
  };
  const below = {orientation: "h", y: -0.2, yanchor: "top"};
  const layout = {
    template: "none",
    height: narrow.matches ? 560 : 480,
    margin: {t: 20, r: 10, l: 50, b: 50},
    paper_bgcolor: css("--ground"),
    plot_bgcolor: css("--ground"),
    font: {color: css("--ink")},
    xaxis: {...axis, title: {text: "T, tokens in a call"}},
    yaxis: {...axis, title: {text: hasBound ? "times the roofline bound" : "ms"}},
    legend: narrow.matches ? below : {},
    showlegend: true,
    hoverlabel: {align: "left"},
  };
  const config = {responsive: true, displaylogo: false, displayModeBar: !narrow.matches};
  Plotly.react(figure, curves, layout, config);
}

// Digits after the point.
const DIGITS = {
  tokens: 0, ms: 4, over_bound: 2, over_fastest: 2, runs: 0, ms_low: 4, ms_high: 4, speedup: 1,
  matched: 4,
};

function cellText(column, value) {
  if (value === null) return "";
  if (column === "timestamp") return value.slice(0, 10);
  return column in DIGITS ? value.toFixed(DIGITS[column]) : value;
}

function tableRow(row) {
  const line = document.createElement("tr");
  if (row.tied) line.className = "tied";
  if (row.source === "stale") line.className = "stale";
  line.title = row.place;
  for (const head of heads) {
    const column = head.dataset.column;
    const cell = line.insertCell();
    cell.className = head.className;
    cell.textContent = cellText(column, row[column]);
  }
  return line;
}

// What is not there comes last in either order.
function compare(one, other) {
  if (one === null || other === null) return (one === null) - (other === null);
  const order = typeof one === "number" ? one - other : one.localeCompare(other);
  return view.up ? order : -order;
}

function showTable(chosen) {
  for (const head of heads) {
    head.removeAttribute("aria-sort");
    if (head.dataset.column !== view.sort) continue;
    head.setAttribute("aria-sort", view.up ? "ascending" : "descending");
  }
  const sorted = [...chosen].sort((one, other) => compare(one[view.sort], other[view.sort]));
  body.replaceChildren(...sorted.map(tableRow));
}

// Everything that is shown, of the view, in the colours of the viewer's scheme.
function paint() {
  const chosen = choose();
  showConditions(chosen);
  showFigure(chosen);
  showTable(chosen);
}

function change(fields) {
  Object.assign(view, fields);
  paint();
  writeAddress();
}

function sortBy(column) {
  change({sort: column, up: column === view.sort ? !view.up : true});
}

// Returns false, so that plotly leaves it to us.
function hideOrShow(event) {
  const solution = event.data[event.curveNumber].meta;
  const others = view.hidden.filter(hidden => hidden !== solution);
  const wasHidden = others.length < view.hidden.length;
  change({hidden: wasHidden ? others : [...others, solution]});
  return false;
}

function openAddress() {
  readAddress();
  paint();
}

async function open() {
  const library = document.createElement("script");
  library.textContent = await inflate(PLOTLY);
  document.head.append(library);

  const results = JSON.parse(await inflate(RESULTS));
  orders = results.orders;
  looks = results.looks;
  rows = results.rows.map(
    values => Object.fromEntries(results.columns.map((name, at) => [name, values[at]])));

  openAddress();
  for (const choice of CHOICES) {
    document.getElementById(choice).onchange = event => change({[choice]: event.target.value});
  }
  for (const head of heads) head.firstChild.onclick = () => sortBy(head.dataset.column);
  figure.on("plotly_legendclick", hideOrShow);
  figure.on("plotly_legenddoubleclick", () => false);
  addEventListener("hashchange", openAddress);
  dark.onchange = paint;
  narrow.onchange = paint;
}

open();

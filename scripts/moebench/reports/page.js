// Defined before this script, each as gzip in base64: PLOTLY, the library; CURVES, a figure's JSON;
// ROWS, the table's rows in HTML. A section is a definition on a GPU.
async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const figure = document.getElementById("figure");
const chosen = document.getElementById("section");
const body = document.querySelector("tbody");
const heads = [...document.querySelectorAll("th")];

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name);

let curves;

// The chosen section's curves and rows, in the colours of the viewer's scheme.
function paint() {
  const section = Number(chosen.value);
  const traces = curves.data.map(trace => {
    const color = trace.meta.colours[dark.matches ? 1 : 0];
    return {
      ...trace,
      line: {...trace.line, color},
      marker: {...trace.marker, color},
      visible: trace.meta.section === section,
    };
  });

  const axis = {gridcolor: css("--line"), linecolor: css("--line"), zerolinecolor: css("--line")};
  const layout = {
    ...curves.layout,
    paper_bgcolor: css("--ground"),
    plot_bgcolor: css("--ground"),
    font: {color: css("--ink")},
    xaxis: {...curves.layout.xaxis, ...axis},
    yaxis: {...curves.layout.yaxis, ...axis},
  };
  Plotly.react(figure, traces, layout, {responsive: true, displaylogo: false});

  for (const row of body.rows) row.hidden = Number(row.dataset.section) !== section;
}

// A cell with a number has its whole value apart from the text, which is short.
function compare(one, other) {
  if (one.dataset.value === undefined || other.dataset.value === undefined) {
    return one.textContent.localeCompare(other.textContent);
  }
  const number = cell => cell.dataset.value === "" ? Infinity : Number(cell.dataset.value);
  return number(one) - number(other) || 0;
}

// Infinity - Infinity is NaN: cells without a number are equal, and the greatest.
function sort(column) {
  const up = heads[column].getAttribute("aria-sort") !== "ascending";
  heads.forEach(head => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");

  const rows = [...body.rows];
  rows.sort((one, other) => (up ? 1 : -1) * compare(one.cells[column], other.cells[column]));
  body.append(...rows);
}

async function open() {
  const library = document.createElement("script");
  library.textContent = await inflate(PLOTLY);
  document.head.append(library);
  curves = JSON.parse(await inflate(CURVES));
  body.innerHTML = await inflate(ROWS);

  heads.forEach((head, column) => { head.firstChild.onclick = () => sort(column); });
  chosen.onchange = paint;
  dark.onchange = paint;
  paint();
}

open();

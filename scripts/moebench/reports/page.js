// FIGURE, plotly's JSON, is defined before this script. A section is a definition on a GPU.
const dark = matchMedia("(prefers-color-scheme: dark)");
const figure = document.getElementById("figure");
const chosen = document.getElementById("section");
const body = document.querySelector("tbody");
const heads = [...document.querySelectorAll("th")];

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name);

// The chosen section's curves and rows, in the colours of the viewer's scheme.
function paint() {
  const section = Number(chosen.value);
  const traces = FIGURE.data.map(trace => {
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
    ...FIGURE.layout,
    paper_bgcolor: css("--ground"),
    plot_bgcolor: css("--ground"),
    font: {color: css("--ink")},
    xaxis: {...FIGURE.layout.xaxis, ...axis},
    yaxis: {...FIGURE.layout.yaxis, ...axis},
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

heads.forEach((head, column) => { head.firstChild.onclick = () => sort(column); });
chosen.onchange = paint;
dark.onchange = paint;
paint();

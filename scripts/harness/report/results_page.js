"use strict";
// Sorting, filters, plots and the trace dialog. Every figure comes ready from the page; text is only ever set as text.
(() => {
  document.documentElement.classList.add("js");
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  // circle, square, triangle, diamond, triangle down, plus, cross, pentagon, as in the figures
  const MARKS = [
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z", "M-3.6-3.6h7.2v7.2h-7.2Z", "M0-4.8L4.6 3.6H-4.6Z", "M0-5L5 0L0 5L-5 0Z",
    "M0 4.8L4.6-3.6H-4.6Z", "M-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3Z",
    "M0-1.9L2.5-4.4L4.4-2.5L1.9 0L4.4 2.5L2.5 4.4L0 1.9L-2.5 4.4L-4.4 2.5L-1.9 0L-4.4-2.5L-2.5-4.4Z",
    "M0-4.6L4.4-1.4L2.7 3.7H-2.7L-4.4-1.4Z",
  ];
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  // Sorting: rows without a figure stay last either way; equal rows keep their order.
  function sortBy(th) {
    const to = th.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const other of th.parentElement.children) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    th.setAttribute("aria-sort", to);
    resort(th);
  }
  function sortKey(cell) {
    const text = cell.dataset[document.body.dataset.metric] ?? cell.dataset.value;
    return text === undefined || text === "" ? null : text;
  }
  function resort(th) {
    const body = th.closest("table").tBodies[0];
    const ascending = th.getAttribute("aria-sort") === "ascending";
    const numeric = th.dataset.kind !== "text";
    const rows = [...body.rows].map((row) => [sortKey(row.cells[th.cellIndex]), row]);
    const order = (a, b) => (numeric ? Number(a) - Number(b) : a.localeCompare(b));
    rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : ascending ? order(a, b) : order(b, a)));
    body.append(...rows.map(([, row]) => row));
  }
  for (const button of $$("th button")) button.addEventListener("click", () => sortBy(button.closest("th")));

  // Filters. What is off is hidden in tables and plots alike.
  const chosen = (name) => new Set($$(`.filters input[name="${name}"]:checked`).map((input) => input.value));
  let shown = {};
  function filter() {
    shown = { solutions: chosen("solution"), regimes: chosen("regime"), plot: [...chosen("plot")][0] };
    const tolerance = [...chosen("tolerance")][0];
    const metric = [...chosen("metric")][0];
    if (document.body.dataset.metric !== metric) {
      document.body.dataset.metric = metric;
      $$("th[aria-sort$='ending']").forEach(resort);
    }
    for (const node of $$("main [data-solution]"))
      node.hidden = [node.dataset.solution, node.dataset.other ?? node.dataset.solution].some((name) => !shown.solutions.has(name));
    for (const row of $$("main tr[data-regime]")) {
      const regime = shown.regimes.has(row.dataset.regime) || row.dataset.regime === "";
      row.hidden = !regime || (row.dataset.solution !== undefined && !shown.solutions.has(row.dataset.solution));
    }
    // A page of one definition has no choice of it.
    const definition = [...chosen("definition")][0];
    for (const section of $$("main section[data-definition]")) {
      const other = section.matches(".group") && tolerance !== "" && section.dataset.tolerance !== tolerance;
      section.hidden = other || (definition !== undefined && section.dataset.definition !== definition);
    }
    const rows = $$("section.group:not([hidden]) .workloads tbody tr");
    const visible = rows.filter((row) => !row.hidden).length;
    const count = (n, of, what) => `${n} of ${of} ${what}`;
    document.getElementById("shown").textContent =
      `Shown: ${count(visible, rows.length, "workload rows")}, ${count(shown.solutions.size, data.solutions.length, "solutions")}.`;
    drawAll();
  }
  for (const form of $$(".filters")) {
    form.addEventListener("change", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  // Plots: over the workloads side by side, in the order of T
  const METRICS = {
    bound: { value: (p) => p.over_bound, bound: (w) => w.bound_ms && 1, caption: "Latency / roofline bound: lower is better, 1 is the bound" },
    latency: { value: (p) => p.latency_ms, bound: (w) => w.bound_ms, caption: "Latency in ms (log): lower is better" },
    speedup: { value: (p) => p.speedup, bound: (w) => w.bound_speedup, caption: "Speed-up over the reference (log): higher is better" },
  };
  const OUTLIER = 3; // times the median of what is drawn: above, a number stands in place of the point, as in the figures
  const LINE = 14;
  function ticks(low, high) {
    const powers = Array.from({ length: Math.ceil(Math.log10(high / low)) + 2 }, (_, at) => at + Math.floor(Math.log10(low)));
    const found = powers.flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`)));
    const inside = found.filter((value) => value >= low && value <= high);
    return inside.length > 2 ? inside : even(low, high);
  }
  function even(low, high) {
    const rough = (high - low) / 5;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((value) => value >= rough);
    const count = Math.floor(high / step) - Math.ceil(low / step) + 1;
    return Array.from({ length: count }, (_, at) => Number(((Math.ceil(low / step) + at) * step).toPrecision(6)));
  }
  const number = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 6 });
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  // The y axis for these values: linear from 1 to where outliers begin, or logarithmic. share: value -> 0 to 1.
  function axis(values, linear) {
    if (linear) {
      const sorted = [...values].sort((a, b) => a - b);
      const high = Math.max(Math.min(sorted.at(-1) * 1.04, OUTLIER * sorted[sorted.length >> 1]), 1.1);
      const low = Math.min(1 - 0.06 * (high - 1), 0.95 * sorted[0]);
      return { high, marks: even(low, high), share: (value) => (value - low) / (high - low) };
    }
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const extra = Math.max((most / least) ** 0.05, most / least < 1.5 ? 1.5 : 1);
    const [low, high] = [least / extra, most * extra];
    return { high, marks: ticks(low, high), share: (value) => Math.log(value / low) / Math.log(high / low) };
  }
  // Sorted places moved as little as is needed to lie a gap apart: those that touch move together.
  function apart(places, gap) {
    const groups = [];
    for (const place of places) {
      groups.push([place]);
      while (groups.length > 1 && mean(groups.at(-1)) - mean(groups.at(-2)) < (gap * (groups.at(-1).length + groups.at(-2).length)) / 2)
        groups.push(groups.splice(-2).flat());
    }
    return groups.flatMap((group) => group.map((_, at) => mean(group) + gap * (at - (group.length - 1) / 2)));
  }

  function draw(figure) {
    const group = data.groups[Number(figure.dataset.group)];
    const plot = figure.querySelector(".plot");
    const off = figure.hiddenCurves;
    const workloads = group.workloads.filter((w) => shown.regimes.has(w.regime));
    const byUuid = new Map(workloads.map((w) => [w.uuid, w]));
    // Without a bound, as on another GPU, the latency says most.
    const kind = shown.plot === "bound" && !group.workloads.some((w) => w.bound_ms) ? "latency" : shown.plot;
    const metric = METRICS[kind];
    figure.querySelector("figcaption").textContent = metric.caption;
    const curves = group.series
      .filter((series) => shown.solutions.has(series.solution) && !off.has(series.solution))
      .map((series) => ({ ...series, points: series.points.filter((p) => byUuid.has(p.uuid) && metric.value(p) > 0) }))
      .filter((series) => series.points.length);
    const bound = off.has("bound") ? [] : workloads.filter((w) => metric.bound(w) > 0);
    const values = curves.flatMap((c) => c.points.map(metric.value));

    const width = Math.max(figure.clientWidth, 240);
    const named = width > 640; // room for names at the ends of the curves
    const ys = values.length && axis(kind === "bound" ? values : [...values, ...bound.map(metric.bound)], kind === "bound");
    const [left, right] = [width < 480 ? 40 : 50, named ? 165 : 16];
    const slot = (width - left - right) / workloads.length;
    const x = (uuid) => left + (workloads.indexOf(byUuid.get(uuid)) + 0.5) * slot;
    const above = new Map(); // point above the axis -> in which line its number stands, beside no other number
    const outliers = curves.flatMap((c) => c.points.filter((p) => metric.value(p) > ys.high));
    for (const p of outliers.sort((p, q) => x(p.uuid) - x(q.uuid) || metric.value(p) - metric.value(q))) {
      let line = 0;
      while ([...above].some(([q, at]) => at === line && Math.abs(x(q.uuid) - x(p.uuid)) < 36)) line++;
      above.set(p, line);
    }
    const top = 10 + LINE * Math.max(0, ...[...above.values()].map((line) => line + 1));
    const height = (width < 480 ? 300 : 430) + top;
    const floor = height - 40;
    plot.replaceChildren();
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    plot.setAttribute("height", height);
    if (!values.length) {
      plot.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing to show with these filters."));
      return;
    }
    const y = (value) => floor - ys.share(value) * (floor - top);

    let free = 0;
    for (const workload of workloads) {
      const at = x(workload.uuid);
      plot.append(svg("line", { class: "axis", x1: at, x2: at, y1: floor, y2: floor + 4 }));
      if (at < free) continue;
      free = at + 8 + 7 * String(workload.seq_len).length;
      plot.append(svg("text", { x: at, y: floor + 17, "text-anchor": "middle" }, String(workload.seq_len)));
    }
    for (const value of ys.marks) {
      plot.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      plot.append(svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, number(value)));
    }
    plot.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: floor, y2: floor }));
    plot.append(svg("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, "T, tokens (at equal distances)"));

    const guide = svg("line", { class: "guide", y1: top, y2: floor });
    const [inner, tall] = [width - left - right, floor - top];
    const area = svg("svg", { x: left, y: top, width: inner, height: tall, viewBox: `${left} ${top} ${inner} ${tall}` }); // clips
    plot.append(area, guide);
    const ends = [];
    const line = (colour, name, points) => {
      const d = points.map(([px, py], at) => `${at ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
      area.append(svg("path", { class: `curve ${colour}`, d }));
      if (points.length) ends.push({ colour, name, px: points.at(-1)[0], py: Math.max(points.at(-1)[1], top) });
    };
    line("series-bound", "bound", bound.map((w) => [x(w.uuid), y(metric.bound(w))]));
    for (const curve of curves) line(curve.colour, curve.solution, curve.points.map((p) => [x(p.uuid), y(metric.value(p))]));
    ends.sort((a, b) => a.py - b.py);
    if (named)
      apart(ends.map((end) => end.py), LINE).forEach((py, at) => {
        const { colour, name, px, py: from } = ends[at];
        plot.append(svg("path", { class: `leader ${colour}`, d: `M${px + 6} ${from}L${width - right + 6} ${py}` }));
        plot.append(svg("text", { class: `name ${colour}`, x: width - right + 9, y: py + 4 }, name));
      });

    const placed = curves.flatMap((curve, line) => curve.points.map((point, at) => {
      const py = above.has(point) ? top - 8 - LINE * above.get(point) : y(metric.value(point));
      return { px: x(point.uuid), py, line, at, point, curve, workload: byUuid.get(point.uuid) };
    }));
    placed.forEach((spot, index) => {
      const stale = spot.point.stale ? " stale" : "";
      spot.link = svg("a", {
        class: `point ${spot.curve.colour}`, href: `#${spot.point.trace}`, "aria-label": spot.point.label,
        transform: `translate(${spot.px.toFixed(1)} ${spot.py.toFixed(1)})`, tabindex: index ? -1 : 0,
      }, above.has(spot.point)
        ? svg("text", { class: "name", y: 4, "text-anchor": "middle" }, `${Number(metric.value(spot.point).toPrecision(2))} ↑`)
        : svg("path", { class: `mark${stale}`, d: MARKS[spot.curve.mark] }));
      plot.append(spot.link);
    });
    interact(figure, plot, guide, placed, curves, kind);
  }

  function interact(figure, plot, guide, placed, curves, kind) {
    const tip = figure.querySelector(".tip");
    let active = null;
    function show(spot) {
      if (spot === active) return;
      active?.link.classList.remove("active");
      active = spot;
      tip.hidden = !spot;
      guide.style.visibility = spot ? "visible" : "hidden";
      if (!spot) return;
      spot.link.classList.add("active");
      guide.setAttribute("x1", spot.px);
      guide.setAttribute("x2", spot.px);
      const lines = curves.map((curve) => {
        const point = curve.points.find((p) => p.uuid === spot.workload.uuid);
        return point && html("div", { class: `line${curve === spot.curve ? " active" : ""}` },
          html("span", { class: `dot ${curve.colour}` }), curve.solution,
          html("span", { class: "value" }, point[`${kind}_text`] + (point.stale ? " (stale)" : "")));
      });
      const least = spot.workload[`bound_${kind}_text`];
      if (least && !figure.hiddenCurves.has("bound"))
        lines.push(html("div", { class: "line" }, html("span", { class: "dot series-bound" }), "bound", html("span", { class: "value" }, least)));
      tip.replaceChildren(html("div", { class: "head" }, spot.workload.label), ...lines.filter(Boolean));
      const box = figure.clientWidth;
      const beside = spot.px + 14 + tip.offsetWidth <= box ? spot.px + 14 : Math.max(0, spot.px - 14 - tip.offsetWidth);
      tip.style.left = `${beside}px`;
      const top = plot.getBoundingClientRect().top - figure.getBoundingClientRect().top;
      tip.style.top = `${top + Math.max(0, spot.py - tip.offsetHeight - 12)}px`;
    }
    function nearest(event) {
      const box = plot.getBoundingClientRect();
      const [px, py] = [event.clientX - box.left, event.clientY - box.top];
      let best = null;
      for (const spot of placed) {
        const far = Math.hypot(spot.px - px, spot.py - py);
        if (far < (best?.far ?? 48)) best = { far, spot };
      }
      return best?.spot ?? null;
    }
    plot.onpointermove = (event) => show(nearest(event));
    plot.onpointerleave = () => show(placed.find((spot) => spot.link === document.activeElement) ?? null);
    let touched = null;
    plot.onpointerdown = (event) => {
      touched = event.pointerType === "touch" ? active : null;
      show(nearest(event));
    };
    plot.onclick = (event) => {
      // On a touch screen the first tap shows the values and the second opens the trace.
      event.preventDefault();
      const spot = event.detail === 0 ? active : nearest(event);
      if (spot && (event.pointerType !== "touch" || spot === touched)) location.hash = spot.point.trace;
    };
    for (const spot of placed) {
      spot.link.addEventListener("focus", () => show(spot));
      spot.link.addEventListener("blur", () => show(null));
    }
    plot.onkeydown = (event) => {
      if (!active) return;
      if (event.key === "Enter") {
        event.preventDefault();
        location.hash = active.point.trace;
        return;
      }
      const near = (list) => list.sort((a, b) => Math.abs(a.px - active.px) - Math.abs(b.px - active.px))[0];
      const along = (step) => placed.find((s) => s.line === active.line && s.at === active.at + step);
      const across = (step) => near(placed.filter((s) => s.line === active.line + step));
      const to = { ArrowRight: () => along(1), ArrowLeft: () => along(-1), ArrowDown: () => across(1), ArrowUp: () => across(-1) }[event.key];
      if (!to) return;
      event.preventDefault();
      const next = to();
      if (!next) return;
      active.link.setAttribute("tabindex", -1);
      next.link.setAttribute("tabindex", 0);
      next.link.focus();
    };
    show(null);
    tip.hidden = true;
  }

  const drawAll = () => $$("section.group:not([hidden]) figure").forEach(draw);
  for (const figure of $$("figure")) figure.hiddenCurves = new Set();
  for (const button of $$(".legend button")) {
    const icon = svg("svg", { viewBox: "-14 -7 28 14", class: button.dataset.colour, "aria-hidden": "true" });
    icon.append(svg("path", { class: `curve ${button.dataset.colour}`, d: "M-13 0H13" }));
    if (button.dataset.mark !== undefined) icon.append(svg("path", { class: "mark", d: MARKS[Number(button.dataset.mark)] }));
    button.prepend(icon);
    button.addEventListener("click", () => {
      const figure = button.closest("section").querySelector("figure");
      const on = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!on));
      if (on) figure.hiddenCurves.add(button.dataset.curve);
      else figure.hiddenCurves.delete(button.dataset.curve);
      draw(figure);
    });
  }
  const main = document.querySelector("main");
  let drawnWidth = main.clientWidth;
  new ResizeObserver(() => {
    // Only another width needs another drawing, which would take the focus from a point.
    if (main.clientWidth === drawnWidth) return;
    drawnWidth = main.clientWidth;
    drawAll();
  }).observe(main);

  // One trace, in a dialog that a link with its fragment opens
  const dialog = document.getElementById("trace");
  const body = dialog.querySelector(".dialog-body");
  let opener = null;
  // A link to a run group shows it, whatever model and tolerance are chosen.
  function reveal(section) {
    if (!section?.matches("section.group")) return;
    if (section.hidden) {
      for (const name of ["tolerance", "definition"])
        for (const input of $$(`input[name="${name}"]`)) if (input.value === section.dataset[name]) input.checked = true;
      filter();
    }
    section.scrollIntoView();
  }
  function open() {
    let id;
    try {
      id = decodeURIComponent(location.hash.slice(1));
    } catch {
      return;
    }
    const trace = Object.hasOwn(data.traces, id) ? data.traces[id] : null;
    if (!trace) {
      if (dialog.open) dialog.close();
      reveal(document.getElementById(id));
      return;
    }
    dialog.querySelector("h2").textContent = trace.title;
    const tags = trace.tags.map(([kind, text]) => html("span", { class: `tag ${kind}` }, text));
    dialog.querySelector(".tags").replaceChildren(...tags);
    body.replaceChildren();
    const group = data.groups[trace.group];
    const workload = group.workloads.find((w) => w.uuid === trace.uuid);
    for (const part of [...trace.parts, workload.part, group.part].filter((p) => p.rows.length)) {
      const list = html("dl");
      for (const [term, value] of part.rows) list.append(html("dt", {}, term), html("dd", {}, value));
      body.append(html("h3", {}, part.title), list);
    }
    body.append(html("h3", {}, "Log"), trace.log ? html("pre", { tabindex: "0" }, trace.log) : html("p", { class: "muted" }, "Empty."));
    dialog.querySelector(".copy").textContent = "Copy link";
    if (!dialog.open) {
      opener = document.activeElement;
      dialog.showModal();
    }
    dialog.scrollTop = 0;
  }
  dialog.addEventListener("close", () => {
    if (location.hash) history.pushState(null, "", location.pathname + location.search);
    opener?.focus?.({ preventScroll: true });
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.querySelector(".copy").addEventListener("click", async (event) => {
    let done = true;
    try {
      await navigator.clipboard.writeText(location.href);
    } catch {
      done = false; // refused, or a page opened as a file: the address bar has the link
    }
    event.target.textContent = done ? "Copied" : "Copy the address bar";
  });
  addEventListener("hashchange", open);

  filter();
  open();
})();

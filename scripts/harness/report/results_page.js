"use strict";
// Sorting, filters, plots and the trace dialog. Every figure comes ready from the page; text is only ever set as text.
(() => {
  document.documentElement.classList.add("js");
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const MARKS = [
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z", "M-3.6-3.6h7.2v7.2h-7.2Z", "M0-4.8L4.6 3.6H-4.6Z", "M0-5L5 0L0 5L-5 0Z",
    "M0 4.8L4.6-3.6H-4.6Z", "M-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3Z", "M-5-2h10v4h-10Z", "M-2-5h4v10h-4Z",
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
  const filters = document.querySelector(".filters");
  const chosen = (name) => new Set($$(`input[name="${name}"]:checked`, filters).map((input) => input.value));
  let shown = { solutions: new Set(), regimes: new Set() };
  function filter() {
    shown = { solutions: chosen("solution"), regimes: chosen("regime") };
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
    for (const section of $$("section.group")) section.hidden = tolerance !== "" && section.dataset.tolerance !== tolerance;
    const rows = $$("section.group:not([hidden]) .workloads tbody tr");
    const visible = rows.filter((row) => !row.hidden).length;
    const count = (n, of, what) => `${n} of ${of} ${what}`;
    document.getElementById("shown").textContent =
      `Shown: ${count(visible, rows.length, "workload rows")}, ${count(shown.solutions.size, data.solutions.length, "solutions")}.`;
    drawAll();
  }
  filters.addEventListener("change", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());

  // Plots
  const METRICS = {
    latency: { value: (point) => point.latency_ms, bound: (workload) => workload.bound_ms, text: "latency", label: "ms" },
    speedup: { value: (point) => point.speedup, bound: (workload) => workload.bound_speedup, text: "speedup", label: "x" },
  };
  function ticks(low, high) {
    const steps = (digits) => {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
        for (const digit of digits) found.push(Number(`${digit}e${power}`));
      return found.filter((value) => value >= low && value <= high);
    };
    const choices = [steps([1, 2, 5]), steps([1, 2, 3, 4, 5, 6, 8])];
    if (choices[0].length > 7) return steps([1]);
    return choices.find((found) => found.length > 2) ?? even(low, high);
  }
  // Within less than an octave or so even steps read better.
  function even(low, high) {
    const rough = (high - low) / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((value) => value >= rough);
    const count = Math.floor(high / step) - Math.ceil(low / step) + 1;
    return Array.from({ length: count }, (_, at) => Number(((Math.ceil(low / step) + at) * step).toPrecision(6)));
  }
  const number = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 6 });
  function scale(low, high, from, to) {
    const a = Math.log(low);
    const span = Math.log(high) - a;
    return (value) => from + ((Math.log(value) - a) / span) * (to - from);
  }
  function range(values, pad) {
    let low = Math.min(...values);
    let high = Math.max(...values);
    if (high / low < 1.5) [low, high] = [low / 1.5, high * 1.5];
    const extra = (high / low) ** pad;
    return [low / extra, high * extra];
  }

  function draw(figure) {
    const group = data.groups[Number(figure.dataset.group)];
    const metric = METRICS[figure.dataset.metric];
    const plot = figure.querySelector(".plot");
    const off = figure.closest(".plots").hiddenCurves;
    const width = Math.max(figure.clientWidth, 240);
    const height = width < 480 ? 270 : 350;
    const [left, right, top, bottom] = [width < 480 ? 44 : 54, 12, 10, 40];
    plot.replaceChildren();
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    plot.setAttribute("height", height);

    const workloads = group.workloads.filter((w) => w.seq_len > 0 && shown.regimes.has(w.regime));
    const byUuid = new Map(workloads.map((w) => [w.uuid, w]));
    const curves = group.series
      .filter((series) => shown.solutions.has(series.solution) && !off.has(series.solution))
      .map((series) => ({ ...series, points: series.points.filter((p) => byUuid.has(p.uuid) && metric.value(p) > 0) }));
    const bound = off.has("bound") ? [] : workloads.filter((w) => metric.bound(w) > 0);
    const ys = [...curves.flatMap((c) => c.points.map(metric.value)), ...bound.map(metric.bound)];
    if (!ys.length) {
      plot.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing to show with these filters."));
      return;
    }
    const [xLow, xHigh] = range(workloads.map((w) => w.seq_len), 0.03);
    const [yLow, yHigh] = range(ys, 0.05);
    const x = scale(xLow, xHigh, left, width - right);
    const y = scale(yLow, yHigh, height - bottom, top);

    let free = 0;
    for (const value of ticks(xLow, xHigh)) {
      plot.append(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: height - bottom }));
      if (x(value) < free) continue;
      free = x(value) + 34;
      plot.append(svg("text", { x: x(value), y: height - bottom + 16, "text-anchor": "middle" }, number(value)));
    }
    for (const value of ticks(yLow, yHigh)) {
      plot.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      plot.append(svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, number(value)));
    }
    plot.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
    plot.append(svg("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, "tokens T (log)"));
    plot.append(svg("text", { x: 2, y: top + 2 }, metric.label));

    const path = (points) => points.map(([px, py], at) => `${at ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
    plot.append(svg("path", { class: "curve series-bound", d: path(bound.map((w) => [x(w.seq_len), y(metric.bound(w))])) }));
    const guide = svg("line", { class: "guide", y1: top, y2: height - bottom });
    plot.append(guide);
    const placed = curves.flatMap((curve, line) => curve.points.map((point, at) => {
      const workload = byUuid.get(point.uuid);
      return { px: x(workload.seq_len), py: y(metric.value(point)), line, at, point, curve, workload };
    }));
    curves.forEach((curve, line) => {
      const points = placed.filter((spot) => spot.line === line).map((spot) => [spot.px, spot.py]);
      plot.append(svg("path", { class: `curve ${curve.colour}`, d: path(points) }));
    });
    placed.forEach((spot, index) => {
      const mark = svg("path", { class: `mark${spot.point.stale ? " stale" : ""}`, d: MARKS[spot.curve.mark] });
      spot.link = svg("a", {
        class: `point ${spot.curve.colour}`, href: `#${spot.point.trace}`, "aria-label": spot.point.label,
        transform: `translate(${spot.px.toFixed(1)} ${spot.py.toFixed(1)})`, tabindex: index ? -1 : 0,
      }, mark);
      plot.append(spot.link);
    });
    interact(figure, plot, guide, placed, curves, metric, off);
  }

  function interact(figure, plot, guide, placed, curves, metric, off) {
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
          html("span", { class: "value" }, point[`${metric.text}_text`] + (point.stale ? " (stale)" : "")));
      });
      const least = spot.workload[`bound_${metric.text}_text`];
      if (least && !off.has("bound"))
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
  for (const plots of $$(".plots")) plots.hiddenCurves = new Set();
  for (const button of $$(".legend button")) {
    const icon = svg("svg", { viewBox: "-14 -7 28 14", class: button.dataset.colour, "aria-hidden": "true" });
    icon.append(svg("path", { class: `curve ${button.dataset.colour}`, d: "M-13 0H13" }));
    if (button.dataset.mark !== undefined) icon.append(svg("path", { class: "mark", d: MARKS[Number(button.dataset.mark)] }));
    button.prepend(icon);
    button.addEventListener("click", () => {
      const plots = button.closest("section").querySelector(".plots");
      const on = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!on));
      if (on) plots.hiddenCurves.add(button.dataset.curve);
      else plots.hiddenCurves.delete(button.dataset.curve);
      $$("figure", plots).forEach(draw);
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
  // A link to a run group shows it, whatever tolerance is chosen.
  function reveal(section) {
    if (!section?.matches("section.group")) return;
    if (section.hidden) {
      $$('input[name="tolerance"]').find((input) => input.value === section.dataset.tolerance).checked = true;
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

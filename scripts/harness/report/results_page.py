"""The results page: one HTML file that needs no network, made from the comparison model.

The figures are the model's; here they get their text, their place and their link. Whatever traces say is escaped:
by Jinja in the page, by its tojson in the data block. The page's policy lets only its own script run, by hash, and
lets nothing be fetched.
"""

import base64
import hashlib
from pathlib import Path
from types import SimpleNamespace

import jinja2

from harness.operators import roofline
from harness.operators.catalogue import definition_name
from harness.report import colours
from harness.report.comparison import matched_columns
from harness.report.table import decimal
from harness.results.comparison import Comparison, Row, RunGroup, Section, tolerance_order
from harness.results.model_names import layers
from harness.results.summary import REGIMES

HERE = Path(__file__).parent
SOURCES = {
    "current": "current: the solution's source has not changed since",
    "stale": "stale: the source has changed since, or is gone",
    "unknown": "unknown: not known whether the source has changed since",
}


def regime_of(seq_len: int) -> str:
    return next(regime.name for regime in REGIMES if regime.holds(seq_len))


def status_words(cell: SimpleNamespace) -> str:
    return cell.status.replace("_", " ").lower()


def tags_of(cell: SimpleNamespace) -> list[tuple[str, str]]:
    """(kind, words) of what is to be known of a cell at first sight."""
    tags = [] if cell.passed else [("failed", status_words(cell))]
    if cell.passed and cell.latency_ms is None:
        tags.append(("skipped", "passed, not timed"))
    if cell.stale:
        tags.append(("stale", "stale"))
    if cell.source == "unknown":
        tags.append(("skipped", "source unknown"))
    if cell.level:
        tags.append(("best", "★ fastest" if cell.over_fastest == 1 else "★ level with the fastest"))
    return tags


def label_of(cell: SimpleNamespace) -> str:
    """One line about a cell, for a reader who sees neither table nor plot."""
    words = status_words(cell)
    if cell.latency_ms is not None:
        words = f"{cell.latency_ms:.3f} ms, {cell.speedup:.1f}x"
    over = "" if cell.over_bound is None else f", {cell.over_bound:.2f} times the bound"
    tags = "".join(f", {text}" for kind, text in tags_of(cell) if kind != "failed")
    return f"{cell.solution} at T = {cell.seq_len}: {words}{over}{tags}"


def group_id(section: Section, group: RunGroup) -> str:
    """Eight hex digits that stay while machine, versions, tolerance and protocol do."""
    what = (section.definition, section.hardware, sorted(section.versions.items()), group.tolerance, group.protocol)
    return hashlib.sha1(repr(what).encode()).hexdigest()[:8]


def trace_id(section: Section, group: RunGroup, cell: SimpleNamespace) -> str:
    """A fragment of a URL, the same for a later trace of the same experiment."""
    key = f"{group_id(section, group)} {cell.solution} {cell.uuid}"
    return f"trace-{hashlib.sha1(key.encode()).hexdigest()[:12]}"


def dialog_part(title: str, *rows: tuple[str, object, str]) -> dict:
    """A part of the dialog, of (term, value, format); a value that is not known is left out."""
    return {"title": title, "rows": [(term, form.format(value)) for term, value, form in rows if value is not None]}


def trace_view(section: Section, group: RunGroup, cell: SimpleNamespace) -> dict:
    """What the dialog shows of one trace alone."""
    matched = section.matched.get(cell.uuid, {}).get(cell.solution, {})
    others = sorted(matched.keys() - {group.tolerance_name}, key=tolerance_order)
    parts = [
        dialog_part(
            "Figures",
            ("Status", cell.status, "{}"),
            ("Latency", cell.latency_ms, "{:,.4f} ms"),
            ("Reference", cell.reference_ms, "{:,.3f} ms"),
            ("Speed-up", cell.speedup, "{:,.2f}x"),
            ("Latency / bound", cell.over_bound, "{:,.3f}"),
        ),
        dialog_part(
            "Error",
            ("Matched ratio", cell.matched, "{:.6f}"),
            ("Maximum absolute error", cell.max_absolute_error, "{:g}"),
            ("Maximum relative error", cell.max_relative_error, "{:g}"),
            *((f"Matched at {name}", matched[name], "{:.6f}") for name in others),
        ),
        dialog_part(
            "Run",
            ("Tolerance", group.tolerance, "{}"),
            ("Protocol", group.protocol, "{}"),
            ("Timestamp", cell.timestamp, "{}"),
            ("Packages", cell.packages, "{}"),
            ("Command", cell.command, "{}"),
            ("Recorded in", cell.recorded_in, "{}"),
            ("Older traces", cell.superseded or None, "{}, which do not count"),
        ),
        dialog_part("Source", ("SHA-1", cell.solution_sha1, "{}"), ("State", SOURCES[cell.source], "{}")),
    ]
    title = f"{cell.solution} at T = {cell.seq_len}"
    return {"title": title, "tags": tags_of(cell), "parts": parts, "uuid": cell.uuid, "log": cell.log}


def workload_view(section: Section, row: Row) -> dict:
    """A workload in plots, and its part of the dialog."""
    info, most = row.workload, row.bound_speedup
    part = dialog_part(
        "Workload",
        ("Tokens T", info.seq_len, "{}"),
        ("UUID", info.uuid, "{}"),
        ("Rows (token, local expert)", info.rows, "{:,}"),
        ("Active experts", info.active, "{}"),
        ("Bytes at least", info.bytes and info.bytes / 1e6, "{:,.1f} MB"),
        ("Operations", info.flops and info.flops / 1e9, "{:,.1f} GFLOP"),
        ("Bound", info.bound_ms, "{:,.4f} ms"),
        ("Definition", section.definition, "{}"),
    )
    return {name: getattr(info, name) for name in ("uuid", "seq_len", "bound_ms")} | {
        "regime": regime_of(info.seq_len),
        "label": f"T = {info.seq_len}" + ("" if info.active is None else f", {info.active} active experts"),
        "bound_speedup": most,
        "bound_bound_text": info.bound_ms and f"1 ({info.bound_ms:.3f} ms)",
        "bound_latency_text": info.bound_ms and f"{info.bound_ms:.3f} ms",
        "bound_speedup_text": most and f"{most:.1f}x",
        "part": part,
    }


def point_view(cell: SimpleNamespace, trace: str) -> dict:
    """A timed cell in plots; trace: its `trace_id`."""
    return {name: getattr(cell, name) for name in ("uuid", "over_bound", "latency_ms", "speedup", "stale")} | {
        "bound_text": f"{decimal(cell.over_bound, 2)} ({cell.latency_ms:.3f} ms)",
        "latency_text": f"{cell.latency_ms:.3f} ms",
        "speedup_text": f"{cell.speedup:.1f}x",
        "trace": trace,
        "label": label_of(cell),
    }


def data_of(comparison: Comparison, series: dict[str, dict]) -> dict:
    """What the page's script draws and shows; groups in the order of the page."""
    groups, traces = [], {}
    for section in comparison.sections:
        versions = [(name.replace("_", " "), version, "{}") for name, version in section.versions.items()]
        environment = dialog_part("Environment", ("hardware", section.hardware, "{}"), *versions)
        for group in section.groups:
            points = {name: [] for name in group.solutions}
            for cell in group.cells:
                trace = trace_id(section, group, cell)
                traces[trace] = trace_view(section, group, cell) | {"group": len(groups)}
                if cell.latency_ms is not None:
                    points[cell.solution].append(point_view(cell, trace))
            workloads = [workload_view(section, row) for row in group.rows]
            curves = [{"solution": name, **series[name], "points": found} for name, found in points.items()]
            groups.append({"workloads": workloads, "series": curves, "part": environment})
    return {"solutions": list(series), "groups": groups, "traces": traces}


def series_of(comparison: Comparison) -> dict[str, dict]:
    """Solution -> its colour, a class of `colour_rules`, and its mark, an index of results_page.js's."""
    names = sorted({name for group in comparison.groups for name in group.solutions})
    return {name: {"colour": f"series-{colours.colour(name)}", "mark": colours.mark(name)} for name in names}


def colour_rules() -> str:
    """CSS: the colours of report/colours.py by light and dark scheme."""
    light, dark = (
        "".join(f".series-{name} {{ --series: {pair[at]}; }}\n" for name, pair in colours.PALETTE.items())
        for at in (0, 1)
    )
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"


def hash_source(text: str) -> str:
    """What a Content-Security-Policy calls an inline script or style of exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(comparison: Comparison) -> str:
    """The HTML of a comparison; the same comparison gives the same text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["decimal"] = decimal
    for function in (trace_id, group_id, regime_of, tags_of, label_of, matched_columns):
        environment.globals[function.__name__] = function
    script, style = ((HERE / f"results_page.{kind}").read_text() for kind in ("js", "css"))
    style += colour_rules()
    series = series_of(comparison)
    models = {layer.definition: layer.name for layer in layers()}
    recorded = dict.fromkeys(section.definition for section in comparison.sections)
    definitions = sorted(recorded, key=lambda name: [*models, name].index(name))
    main = definition_name("full")
    seq_lens = {info.seq_len for section in comparison.sections for info in section.workloads}
    return environment.get_template("results_page.html.jinja").render(
        comparison=comparison,
        series=series,
        models=models,
        definitions=definitions,
        first_definition=main if main in definitions else definitions[0],
        regimes=[regime for regime in REGIMES if any(map(regime.holds, seq_lens))],
        tolerances=list(dict.fromkeys(group.tolerance_name for group in comparison.groups)),
        # shown first: that of the run group in which the most cells passed
        first_tolerance=max(comparison.groups, key=lambda g: sum(cell.passed for cell in g.cells)).tolerance_name,
        ceilings=f"{roofline.BYTES_PER_SECOND / 1e12:.2f} TB/s and {roofline.FLOPS_PER_SECOND / 1e12:.0f} TFLOP/s "
        f"(bf16: {roofline.BF16_FLOPS_PER_SECOND / 1e12:.0f})",
        data=data_of(comparison, series),
        script=script,
        style=style,
        script_hash=hash_source(script),
        style_hash=hash_source(style),
    )

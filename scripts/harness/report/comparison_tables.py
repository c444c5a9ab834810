"""The tables of a comparison as plain rows of text, which the terminal and Markdown show alike."""

import math
from dataclasses import dataclass, field

from harness.results.comparison import Cell, Comparison, Ratio, RunGroup, Section, tolerance_order
from harness.results.summary import ALL, REGIMES, RegimeSummary

CLOSE = 0.05  # a lead below this is not worth choosing by
SUMMARY_HEAD = ("passed", "wins", "mean", "geo. mean", "median", "min", "max", "CV", "mean ms", "ms/bound")


@dataclass(frozen=True)
class Entry:
    """Text with what it stands for: "", "best", "stale" or "failed"."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class PlainTable:
    """head names the columns, of which the first `left` are words; sections are blocks of rows."""

    title: str
    head: list[str]
    sections: list[list[list[Entry]]]
    caption: str = ""
    left: int = 1


@dataclass(frozen=True)
class Part:
    """A heading with its lines of text and tables."""

    heading: str
    lines: list[str] = field(default_factory=list)
    tables: list[PlainTable] = field(default_factory=list)


def plain(*texts: str) -> list[Entry]:
    return [Entry(text) for text in texts]


def speedup(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def plain_ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def ratio_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def versions(section: Section) -> str:
    return "; ".join(f"{name.replace('_', ' ')} {version}" for name, version in section.versions.items())


def cell_entry(cell: Cell | None, winner: str | None) -> Entry:
    """Latency, speed-up and, where there is a bound, latency over bound; or why there is none."""
    if cell is None:
        return Entry("-")
    mark = "failed" if not cell.passed else "stale" if cell.stale else "best" if cell.solution == winner else ""
    before = {"current": "", "stale": "stale ", "unknown": "? "}[cell.source]
    if cell.speedup is None:
        matched = "" if cell.matched is None else f" {cell.matched:.4f}"
        return Entry(f"{before}{cell.status}{matched}", mark)
    over = "" if cell.over_bound is None else f" {cell.over_bound:5.2f}"
    star = "* " if mark == "best" else ""
    return Entry(f"{star}{before}{cell.latency_ms:.3f} {cell.speedup:6.1f}x{over}", mark)


def workload_table(group: RunGroup) -> PlainTable:
    bounds = any(row.workload.bound_ms is not None for row in group.rows)
    rows = []
    for row in group.rows:
        entries = plain(str(row.workload.seq_len))
        if bounds:
            entries += plain(milliseconds(row.workload.bound_ms))
        rows.append(entries + [cell_entry(row.cells.get(name), row.winner) for name in group.solutions])
    shown = "ms, speed-up" + (", ms/bound" if bounds else "")
    return PlainTable(
        title="Workloads",
        head=["T", *(["bound ms"] if bounds else []), *group.solutions],
        sections=[rows],
        caption=f"In a cell: {shown}; * the fastest.",
        left=0,
    )


def summary_rows(summary: RegimeSummary) -> list[list[Entry]]:
    rows = []
    for s in summary.summaries:
        figures = [speedup(v) for v in (s.mean, s.geometric_mean, s.median, s.least, s.greatest)]
        passed = f"{s.passed}/{s.workloads}" + (f" {s.stale} stale" if s.stale else "")
        rest = [plain_ratio(s.variation), milliseconds(s.mean_ms), plain_ratio(s.over_bound)]
        entries = plain(summary.regime.name, s.solution, passed, str(s.wins), *figures, *rest)
        for best, at in ((summary.best, 4), (summary.best_geometric, 5)):
            if s.solution == best:
                entries[at] = Entry(entries[at].text, "best")
        if not s.complete:
            entries[2] = Entry(entries[2].text, "failed")
        rows.append(entries)
    return rows


def summary_table(group: RunGroup) -> PlainTable:
    return PlainTable(
        title="Speed-ups",
        head=["T", "solution", *SUMMARY_HEAD],
        sections=[summary_rows(summary) for summary in (group.total, *group.regimes)],
        caption="Over the workloads that passed. mean: arithmetic, FIB's score; marked: the best that passed all. "
        "CV: standard deviation over mean. ms/bound: geometric mean.",
        left=2,
    )


def range_table(group: RunGroup) -> PlainTable:
    rows = [
        [*plain(f"{r.a} / {r.b}"), *plain(*(ratio_text(v) for v in (r.geometric_mean, r.least, r.greatest)))]
        for r in group.ratios
    ]
    return PlainTable(
        title="Ratios",
        head=["pair", "geo. mean", "min", "max"],
        sections=[rows],
        caption="How many times as fast the first is as the second, over the workloads where both count.",
    )


def ratio_table(ratio: Ratio) -> PlainTable:
    rows = []
    for row in ratio.rows:
        mark = "best" if row.ratio is not None and row.ratio > 1 else ""
        times = plain(milliseconds(row.a_ms), milliseconds(row.b_ms))
        rows.append([*plain(str(row.seq_len)), *times, Entry(ratio_text(row.ratio), mark)])
    figures = [ratio_text(value) for value in (ratio.least, ratio.greatest, ratio.geometric_mean)]
    return PlainTable(
        title=f"{ratio.a} against {ratio.b}",
        head=["T", f"{ratio.a} ms", f"{ratio.b} ms", "ratio"],
        sections=[rows],
        caption=f"How many times as fast the first is; from {figures[0]} to {figures[1]}, geometric mean {figures[2]}.",
        left=0,
    )


def matched_table(section: Section) -> PlainTable:
    """A column for each solution, in a cell a ratio for each tolerance that any trace tells."""
    names = sorted({name for row in section.matched for name in row.matched})
    told = {t for row in section.matched for ratios in row.matched.values() for t in ratios}
    tolerances = sorted(told, key=tolerance_order)
    rows = []
    for row in section.matched:
        found = [[row.matched.get(name, {}).get(t) for t in tolerances] for name in names]
        cells = ["  ".join("-" if value is None else f"{value:.4f}" for value in ratios) for ratios in found]
        rows.append(plain(str(row.seq_len), *cells))
    return PlainTable(
        title="Matched ratio",
        head=["T", *names],
        sections=[rows],
        caption=f"In a cell: {', '.join(tolerances)}; the share of elements inside, whether it passed or not.",
        left=0,
    )


def choice(summary: RegimeSummary) -> Entry:
    """The solution to use, its mean speed-up, and whichever is as good."""
    if summary.best is None:
        untimed = any(s.complete for s in summary.summaries)
        return Entry("not timed") if untimed else Entry("none passes all", "failed")
    mean = summary.of(summary.best).mean
    text = f"{summary.best} {mean:.1f}x"
    if summary.runner_up is not None:
        lead = mean / summary.of(summary.runner_up).mean - 1
        if lead < CLOSE:
            text += f" ({summary.runner_up} within {math.ceil(lead * 1000) / 1000:.1%})"
    return Entry(text, "best")


def choice_table(comparison: Comparison) -> PlainTable:
    """What to use, by tolerance and number of tokens; with whatever else run groups differ in."""
    grouped = [(section, group) for section in comparison.sections for group in section.groups]
    regimes = [r for r in REGIMES if any(s.regime == r for _, group in grouped for s in group.regimes)]
    where = {
        "definition": lambda section, group: section.definition,
        "machine": lambda section, group: section.hardware,
        "versions": lambda section, group: versions(section),
        "tolerance": lambda section, group: group.tolerance_name,
        "protocol": lambda section, group: group.protocol,
    }
    told = {name: [of(*both) for both in grouped] for name, of in where.items()}
    # A protocol tells run groups apart only where two have the same tolerance.
    same = len(set(zip(*(told[name] for name in where if name != "protocol"), strict=True))) == len(grouped)
    head = [name for name in where if len(set(told[name])) > 1 and not (name == "protocol" and same)]
    head += [] if "tolerance" in head else ["tolerance"]
    sections = [[] for _ in comparison.sections]
    for at, (section, group) in enumerate(grouped):
        by_regime = {summary.regime: choice(summary) for summary in (group.total, *group.regimes)}
        chosen = [by_regime.get(regime, Entry("-")) for regime in (ALL, *regimes)]
        sections[comparison.sections.index(section)].append([*plain(*(told[name][at] for name in head)), *chosen])
    return PlainTable(
        title="Which to use",
        head=[*head, ALL.name, *(regime.name for regime in regimes)],
        sections=sections,
        caption="Greatest mean speed-up of those that passed every workload.",
        left=len(head) + 1 + len(regimes),
    )


def parts_of(comparison: Comparison, pair: tuple[str, str] | None = None) -> list[Part]:
    """All of a comparison; with a pair its ratio alone, workload by workload."""
    parts = []
    for section in comparison.sections:
        parts.append(Part(f"{section.hardware}: {section.definition}", [versions(section)]))
        for group in section.groups:
            tables = [ratio_table(ratio) for ratio in group.ratios]
            if not pair:
                ranges = [range_table(group)] if group.ratios else []
                tables = [workload_table(group), summary_table(group), *ranges]
            if tables:
                parts.append(Part(group.tolerance, [f"{group.protocol}; {' to '.join(group.days)}"], tables))
        if not pair:
            parts.append(Part("Exactness", [], [matched_table(section)]))
    return parts

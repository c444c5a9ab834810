"""The results in README.md, made from traces/."""

from collections import defaultdict

from harness.report.table import Table
from harness.results.comparison import Comparison, RunGroup, Section

SHOWN_SEQ_LENS = (1, 7, 57, 901, 11948, 14107)
STALE = "*stale*: the solution's source has changed since it was measured, and what was measured does not count."


def row(group: RunGroup, solution: str) -> list[str]:
    """Of one solution: workloads passed, means, and times where they count."""
    summary = group.total.of(solution)
    found = [row.cells[solution] for row in group.rows if solution in row.cells]
    stale = f", {summary.stale} stale" if summary.stale else ""
    mean = "-" if summary.mean is None else f"{summary.mean:.1f}x"
    mean_ms = "-" if summary.mean_ms is None else f"{summary.mean_ms:.3f}"
    by_length = {cell.seq_len: cell.latency_ms for cell in found if cell.counts}
    times = [f"{by_length[t]:.3f}" if t in by_length else "-" for t in SHOWN_SEQ_LENS]
    passed = f"{summary.passed}/{summary.workloads}{stale}"
    return [solution, passed, mean, mean_ms, *times]


def packages(group: RunGroup) -> str:
    """'flashinfer_cutlass with flashinfer-python 0.6.13; ...': what a trace's own packages were, where it says so."""
    users = defaultdict(list)
    for name in group.solutions:
        found = {row.cells[name].packages for row in group.rows if name in row.cells} - {None}
        if found:
            users[" or ".join(sorted(found))].append(name)
    return "; ".join(f"{', '.join(names)} with {imported}" for imported, names in users.items())


def table(section: Section, group: RunGroup) -> Table:
    notes = [section.versions_text, f"protocol {group.protocol}", " to ".join(group.days), packages(group)]
    return Table(
        head=["solution", "passed", "mean speed-up", "mean ms", *(f"T={t}" for t in SHOWN_SEQ_LENS)],
        sections=[[row(group, solution) for solution in group.solutions]],
        title=f"{section.hardware}, {group.tolerance}",
        notes=[f"Times in ms. {'; '.join(filter(None, notes))}."],
    )


def block(found: Comparison) -> str:
    """Markdown of all tables: one for each machine, set of versions, tolerance and protocol, best solution first."""
    groups = [(section, group) for section in found.sections for group in section.groups]
    parts = [table(section, group).markdown(titled=True) for section, group in groups]
    if any(summary.stale for _, group in groups for summary in group.total.summaries):
        parts.append(STALE)
    return "\n\n".join(parts)

"""The results in README.md, made from traces/."""

from collections import defaultdict

from harness.report.table import Table
from harness.results.comparison import Comparison, RunGroup

SHOWN_SEQ_LENS = (1, 7, 57, 901, 11948, 14107)
STALE = "*stale*: the solution's source has changed since it was measured, and what was measured does not count."


def row(group: RunGroup, solution: str) -> list[str]:
    """Of one solution: workloads passed, means, and times where they count."""
    summary = group.total.of(solution)
    ms = {row.workload.seq_len: row.ms(solution) for row in group.rows}
    return [
        solution,
        f"{summary.passed}/{summary.workloads}{f', {summary.stale} stale' if summary.stale else ''}",
        "-" if summary.mean is None else f"{summary.mean:.1f}x",
        "-" if summary.mean_ms is None else f"{summary.mean_ms:.3f}",
        *(f"{ms[t]:.3f}" if ms.get(t) else "-" for t in SHOWN_SEQ_LENS),
    ]


def packages(group: RunGroup) -> str:
    """'flashinfer_cutlass with flashinfer-python 0.6.13; ...': what a trace's own packages were, where it says so."""
    users = defaultdict(list)
    for name in group.solutions:
        if found := {cell.packages for cell in group.cells if cell.solution == name and cell.packages}:
            users[" or ".join(sorted(found))].append(name)
    return "; ".join(f"{', '.join(names)} with {imported}" for imported, names in users.items())


def block(found: Comparison) -> str:
    """Markdown of all tables: one for each machine, set of versions, tolerance and protocol, best solution first."""
    head = ["solution", "passed", "mean speed-up", "mean ms", *(f"T={t}" for t in SHOWN_SEQ_LENS)]
    parts = []
    for section in found.sections:
        for group in section.groups:
            said = [section.versions_text, f"protocol {group.protocol}", " to ".join(group.days), packages(group)]
            notes = [f"Times in ms. {'; '.join(filter(None, said))}."]
            rows = [row(group, solution) for solution in group.solutions]
            title = f"{section.hardware}, {group.tolerance}"
            parts.append(Table(head, [rows], title, notes=notes).markdown(titled=True))
    if any(summary.stale for group in found.groups for summary in group.total.summaries):
        parts.append(STALE)
    return "\n\n".join(parts)

"""Figure: what the bf16 layer's solutions take over the number of tokens, in log-log, and over the roofline bound."""

from harness.report.figures.picture import Picture, conditions
from harness.report.figures.style import Panel, over_tokens
from harness.results.comparison import Comparison, RunGroup

PANELS = (Panel(1, "latency, ms"), Panel(2, "times the roofline bound", log=False))


def data(group: RunGroup) -> dict:
    """What is drawn: {"bound": [[T, ms, 1]], solution: [[T, ms, ms over bound]]}, of cells that were timed, by T."""
    found = {"bound": [[row.workload.seq_len, row.workload.bound_ms, 1] for row in group.rows if row.workload.bound_ms]}
    for cell in group.cells:
        if cell.latency_ms:
            found.setdefault(cell.solution, []).append([cell.seq_len, cell.latency_ms, cell.over_bound])
    return found


def pictures(comparison: Comparison) -> list[Picture]:
    """One, of the first machine and protocol; none before anything was timed."""
    for section in comparison.sections:
        for group in section.groups:
            title = f"{section.definition}\n{section.hardware}, {group.tolerance}"
            return [Picture("w16a16.svg", over_tokens, (data(group), PANELS, title, conditions(section, group)))]
    return []

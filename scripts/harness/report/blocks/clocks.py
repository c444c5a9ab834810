"""The tables of docs/clocks.md: every solution on every workload by the GPU's clock."""

from types import SimpleNamespace

from harness.report.comparison import LEVEL_WORDS
from harness.report.table import Cell, Table, decimal
from harness.results.comparison import Comparison, RunGroup

NOT_RUN = "**Not run**: no trace by the GPU's clock is recorded here."


def entry(cell: SimpleNamespace | None) -> Cell | str | None:
    """'0.035', or why there is no time; bold where it is the fastest, or level with it."""
    if cell is None:
        return None
    if not cell.counts:
        return "stale" if cell.stale else cell.status.lower().replace("_", " ")
    return Cell(f"{cell.latency_ms:.4f}", "best" if cell.level else "")


def table(group: RunGroup, hardware: str) -> Table:
    rows = [
        [row.workload.seq_len, decimal(row.workload.bound_ms, 4)]
        + [entry(row.cells.get(name)) for name in group.solutions]
        for row in group.rows
    ]
    summaries = [group.total.of(name) for name in group.solutions]

    def line(title: str, figure: str, digits: int, unit: str = "") -> list[str]:
        return [title, "", *(decimal(getattr(s, figure) if s.complete else None, digits, unit) for s in summaries)]

    means = [line("mean", "mean_ms", 4), line("score", "mean", 1, "x"), line("ms/bound", "over_bound", 2)]
    return Table(
        ["T", "bound", *group.solutions],
        [rows, means],
        f"{hardware}, {group.tolerance_name} tolerance, ms by the GPU's clock",
        caption=f"Bold: the fastest, or {LEVEL_WORDS}. score: mean speed-up over the reference, by the same clock.",
    )


def block(found: Comparison) -> str:
    """Markdown: a table for each run group. found: of the GPU's clock alone."""
    parts = []
    for section, group in found.runs:
        said = f"{section.versions_text}; protocol {group.protocol}; {group.when}"
        parts += [table(group, section.hardware).markdown(titled=True), f"<sub>{said}.</sub>"]
    return "\n\n".join(parts) or NOT_RUN

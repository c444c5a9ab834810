"""The tune command's table, until it uses harness.report.table."""

from dataclasses import dataclass, field

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Grid:
    """left: columns that hold words. notes stand below; warnings too, and cannot be overlooked."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    left: int
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def terminal(grid: Grid) -> Group:
    table = Table(title=escape(grid.title))
    for at, heading in enumerate(grid.headings):
        table.add_column(heading, justify="left" if at < grid.left else "right")
    for row in grid.rows:
        table.add_row(*(Text(cell) for cell in row))
    notes = [Text(note) for note in grid.notes]
    return Group(table, *notes, *(Text(f"WARNING {line}", style="bold red") for line in grid.warnings))


def markdown(grid: Grid) -> str:
    rule = ["---"] * grid.left + ["---:"] * (len(grid.headings) - grid.left)
    lines = [f"**{grid.title}**", "", *("| " + " | ".join(row) + " |" for row in (grid.headings, rule, *grid.rows))]
    for line in [*grid.notes, *(f"**Warning**: {line}" for line in grid.warnings)]:
        lines += ["", line]
    return "\n".join(lines)

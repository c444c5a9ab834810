"""A terminal that tests look at: what a table shows in so many columns."""

import io

from moebench.reports.terminal import InTerminal
from rich.console import Console


def shown(table, width):
    """Return the lines of a table in a terminal, without colours or spaces at the end."""
    screen = Console(width=width, file=io.StringIO(), highlight=False, markup=False)
    screen.print(InTerminal(table))
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


def rows_of(lines):
    """Return the cells of each line of a table that begins a row."""
    rows = []
    for line in lines:
        if line.startswith("│"):
            rows.append([cell.strip() for cell in line.strip("│").split("│")])
    return rows


def row_of(lines, first):
    """Return the cells of the row that begins with this cell."""
    return next(row for row in rows_of(lines) if row[0] == first)

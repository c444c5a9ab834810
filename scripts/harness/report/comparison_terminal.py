"""A comparison in the terminal, what to use last, where a reader's eye is when it is done."""

import io

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.comparison_tables import PlainTable, choice_table, parts_of
from harness.results.comparison import Comparison

MIN_WIDTH = 160
CELL_WIDTH = 25  # of a solution's column with its borders
STYLES = {"": "", "best": "bold green", "stale": "dim", "failed": "red"}


def rich_table(table: PlainTable) -> Table:
    out = Table(title=table.title, caption=table.caption, title_justify="left", caption_justify="left")
    for at, name in enumerate(table.head):
        out.add_column(name, justify="left" if at < table.left else "right")
    for rows in table.sections:
        for row in rows:
            out.add_row(*(Text(entry.text, style=STYLES[entry.mark]) for entry in row))
        out.add_section()
    return out


def show(comparison: Comparison, console: Console, pair: tuple[str, str] | None = None) -> None:
    """Print everything, or with a pair its ratio alone."""
    for part in parts_of(comparison, pair):
        console.print(part.heading, style="bold", markup=False, highlight=False)
        for line in part.lines:
            console.print(line, style="dim", markup=False, highlight=False)
        for table in part.tables:
            console.print(rich_table(table))
        console.print()
    for note in comparison.notes:
        console.print(note, style="yellow", markup=False, highlight=False)
    if not pair:
        console.print(rich_table(choice_table(comparison)))


def plain_text(comparison: Comparison, pair: tuple[str, str] | None = None) -> str:
    """What `show` prints, without colours and as wide as the solutions need, for a file."""
    most = max(len(group.solutions) for section in comparison.sections for group in section.groups)
    out = io.StringIO()
    show(comparison, Console(file=out, width=max(MIN_WIDTH, 20 + CELL_WIDTH * most)), pair)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())

"""A table in a terminal: made as wide as the terminal by leaving columns out and breaking
sentences. Commands print `InTerminal(table)` on `console()`.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table as RichTable
from rich.text import Text

from moebench.core.printable import printable
from moebench.reports.table import Entry, Table, as_cell, one_line

STYLES = {
    "": "",
    "best": "bold green",
    "good": "green",
    "stale": "dim",
    "failed": "bold red",
}

# Widths in characters
UNLIMITED = 10_000  # of a file or a pipe, which no line exceeds
SENTENCE = 20  # least width of a column of words whose texts are broken into lines
TEXT_WIDTH = 100  # of captions and notes, unless their table is wider
COLUMN_EDGES = 3  # of each column: a space on both sides, and the rule to its right
TABLE_EDGE = 1  # the rule on the left


def console() -> Console:
    """Return what commands print on: the terminal, or a file or pipe, whose lines are never cut."""
    width = None if sys.stdout.isatty() else UNLIMITED
    return Console(width=width, highlight=False, markup=False, emoji=False)


@dataclass(frozen=True)
class Column:
    """A column of a table, measured in characters.

    place: in a row, from 0. width: of the longest text. least: how narrow the column can be, if
    headings and sentences are broken into lines.
    """

    place: int
    name: str
    is_words: bool
    width: int
    least: int


@dataclass(frozen=True)
class InTerminal:
    """A table that fits into the terminal it is printed in, by leaving columns out.

    No text is cut. The key columns are never left out, only broken into lines where they alone are
    wider than the terminal.
    """

    table: Table

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> Iterator:
        table = self.table
        max_width = options.max_width
        columns = []
        for place in range(len(table.head)):
            columns.append(measured_column(table, place, max_width))
        shown = fitting(table, columns, max_width)
        widths = shown_widths(shown, max_width)

        if table.title:
            yield Text(printable(table.title), overflow="fold")
        yield drawn(table, shown, widths)

        texts = [left_out(columns, shown, max_width), table.caption, *table.notes]
        table_width = total_width(widths)
        text_width = min(max_width, max(TEXT_WIDTH, table_width))
        for text in filter(None, texts):
            below = Text(printable(text), overflow="fold")
            yield from screen.render(below, options.update(width=text_width))


def left_out(columns: list[Column], shown: list[Column], max_width: int) -> str:
    """Return a sentence with the columns that are not shown, "" where all are."""
    names = [column.name for column in columns if column not in shown]
    if not names:
        return ""
    terminal = f"the terminal is {max_width} characters wide"
    return f"Left out, as {terminal}: {', '.join(names)}."


def measured_column(table: Table, place: int, max_width: int) -> Column:
    """Return a table's column at this place, measured.

    Texts of a column of words may be broken into lines; those of the first column only where they
    would take more than two thirds of the terminal.
    """
    heading = one_line(table.head[place])
    texts = [as_cell(row[place]).text for row in table.rows]
    is_words = place < table.word_columns

    least = longest(texts)
    if place == 0:
        least = min(least, max_width * 2 // 3)
    elif is_words:
        unbroken = longest_word(texts)
        least = min(least, max(SENTENCE, unbroken))
    least = max(least, longest_word([heading]))
    return Column(place, heading, is_words, longest([heading, *texts]), least)


def longest(texts: list[str]) -> int:
    """Return the width of the widest of these texts."""
    return max(map(cell_len, texts), default=0)


def longest_word(texts: list[str]) -> int:
    """Return the width of the widest word in these texts."""
    return longest(" ".join(texts).split())


def fitting(table: Table, columns: list[Column], max_width: int) -> list[Column]:
    """Return the columns for which a terminal has room, in their order."""
    others = columns[table.key_columns :]
    others.sort(key=lambda column: column.name not in table.important)

    chosen = columns[: table.key_columns]
    for column in others:
        with_column = [*chosen, column]
        widths = [each.least for each in with_column]
        if total_width(widths) <= max_width:
            chosen = with_column
    return sorted(chosen, key=lambda column: column.place)


def shown_widths(columns: list[Column], max_width: int) -> list[int]:
    """Return the widths of the shown columns. What room is left goes to columns whose texts would
    be broken.
    """
    widths = [column.least for column in columns]
    # only where the keys alone are too wide
    while total_width(widths) > max_width and max(widths) > 1:
        widest = widths.index(max(widths))
        widths[widest] -= 1

    for at, column in enumerate(columns):
        space = max(max_width - total_width(widths), 0)
        broken = column.width - column.least
        widths[at] += min(space, broken)
    return widths


def total_width(widths: list[int]) -> int:
    return TABLE_EDGE + sum(widths) + COLUMN_EDGES * len(widths)


def drawn(table: Table, columns: list[Column], widths: list[int]) -> RichTable:
    """Return rich's table of these columns."""
    rich_table = RichTable(box=box.HEAVY_HEAD)
    for column, width in zip(columns, widths, strict=True):
        heading = Text(column.name)
        justify = "left" if column.is_words else "right"
        rich_table.add_column(heading, justify=justify, overflow="fold", width=width)

    for section in table.sections:
        for row in section:
            entries = [row[column.place] for column in columns]
            rich_table.add_row(*map(terminal_cell, entries))
        rich_table.add_section()
    return rich_table


def terminal_cell(entry: Entry) -> Text:
    """Return an entry as rich draws it."""
    cell = as_cell(entry)
    return Text(cell.text, style=STYLES[cell.mark])

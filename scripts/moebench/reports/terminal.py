"""A table in a terminal: made as wide as the terminal by leaving columns out and breaking
sentences. Commands print `InTerminal(table)` on `console()`.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Column
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
SENTENCE = 20  # least width of a column of words, whose texts are broken into lines
TEXT_WIDTH = 100  # of captions and notes, unless their table is wider


def console() -> Console:
    """Return what commands print on: the terminal, or a file or pipe, whose lines are never cut."""
    width = None if sys.stdout.isatty() else UNLIMITED
    return Console(width=width, highlight=False, markup=False, emoji=False)


@dataclass(frozen=True)
class InTerminal:
    """A table that fits into the terminal it is printed in, by leaving columns out.

    No text is cut. The key columns are never left out, only broken into lines where they alone are
    wider than the terminal.
    """

    table: Table

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> Iterator:
        table = self.table
        places = shown_places(table, screen, options)
        rich_table = drawn(table, places, options.max_width)
        if table.title:
            yield Text(printable(table.title), overflow="fold")
        yield rich_table

        texts = [
            left_out(table, places, options.max_width),
            table.caption,
            *table.notes,
        ]
        table_width = screen.measure(rich_table, options=options).maximum
        text_width = min(options.max_width, max(TEXT_WIDTH, table_width))
        for text in filter(None, texts):
            below = Text(printable(text), overflow="fold")
            yield from screen.render(below, options.update(width=text_width))


def shown_places(table: Table, screen: Console, options: ConsoleOptions) -> list[int]:
    """Return the places in a row, from 0, of the columns for which a terminal has room: those of
    the keys, then the important ones, then the others from the left.
    """
    others = list(range(table.key_columns, len(table.head)))
    others.sort(key=lambda place: table.head[place] not in table.important)
    without_limit = options.update(width=UNLIMITED)

    shown = list(range(table.key_columns))
    for place in others:
        places = sorted([*shown, place])
        rich_table = drawn(table, places, options.max_width)
        least_width = screen.measure(rich_table, options=without_limit).minimum
        if least_width <= options.max_width:
            shown = places
    return shown


def left_out(table: Table, shown: list[int], max_width: int) -> str:
    """Return a sentence with the columns that are not shown, "" where all are."""
    names = [
        one_line(name) for place, name in enumerate(table.head) if place not in shown
    ]
    if not names:
        return ""
    terminal = f"the terminal is {max_width} characters wide"
    return f"Left out, as {terminal}: {', '.join(names)}."


def drawn(table: Table, places: list[int], max_width: int) -> RichTable:
    """Return rich's table of the columns at these places."""
    columns = [column_at(place, table, max_width) for place in places]
    rich_table = RichTable(*columns, box=box.HEAVY_HEAD)
    for section in table.sections:
        for row in section:
            cells = [terminal_cell(row[place]) for place in places]
            rich_table.add_row(*cells)
        rich_table.add_section()
    return rich_table


def column_at(place: int, table: Table, max_width: int) -> Column:
    """Return rich's column, whose texts it may break into lines if they are words; those of the
    first column only where they would take more than two thirds of the terminal.
    """
    is_words = place < table.word_columns
    justify = "left" if is_words else "right"
    heading = Text(one_line(table.head[place]))
    column = Column(heading, justify=justify, overflow="fold")

    texts = [heading, *(terminal_cell(row[place]) for row in table.rows)]
    longest = max(text.cell_len for text in texts)
    if place == 0:
        column.width = min(longest, max_width * 2 // 3)
    elif is_words:
        column.min_width = min(longest, SENTENCE)
    else:
        column.width = longest
    return column


def terminal_cell(entry: Entry) -> Text:
    """Return an entry as rich draws it."""
    cell = as_cell(entry)
    return Text(cell.text, style=STYLES[cell.mark])

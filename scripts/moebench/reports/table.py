"""The one table, and how it is drawn: in a terminal as wide as it is, or as Markdown.

What others have named may hold control characters, which are shown and not obeyed.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table as RichTable
from rich.text import Text

from moebench.core.printable import printable

STYLES = {"": "", "best": "bold green", "good": "green", "stale": "dim", "failed": "bold red"}

# A file or a pipe has no width that a line could exceed.
UNLIMITED = 10_000

# Where room is short, a column of words is broken into lines of at least so many characters.
SENTENCE = 20

# Captions and notes go up to here, or as far as their table.
TEXT_WIDTH = 100

# Of each column: a space on both sides, and the rule to its right. One more rule on the left.
COLUMN_EDGES = 3
TABLE_EDGE = 1


def console() -> Console:
    """Return the terminal, or the stream that the output goes to, whose lines are never cut."""
    width = None if sys.stdout.isatty() else UNLIMITED
    return Console(width=width, highlight=False, markup=False, emoji=False)


@dataclass(frozen=True)
class Cell:
    """A text and what it stands for, a key of STYLES."""

    text: str
    mark: str = ""


Entry = Cell | str | int | None
Row = list[Entry]


@dataclass(frozen=True)
class Table:
    """Rows under named columns.

    head: the columns' names, of which the first `words` hold words and the others numbers.
    sections: blocks of rows, with a rule between two of them. An entry that is no Cell has no mark;
    None is shown as "-". caption: explains the cells. notes: stand below it.

    A narrow terminal shows a part of the columns: the first `keys`, which tell the rows apart, then
    those that `important` names, then from the left what there is room for.
    """

    head: list[str]
    sections: list[list[Row]]
    title: str = ""
    words: int = 1
    caption: str = ""
    notes: list[str] = field(default_factory=list)
    keys: int = 1
    important: tuple[str, ...] = ()

    @property
    def rows(self) -> list[Row]:
        """Return the rows of all sections."""
        return [row for section in self.sections for row in section]

    def terminal(self) -> "InTerminal":
        """Return what a rich Console prints."""
        return InTerminal(self)

    def markdown(self, titled: bool = False) -> str:
        """Return the table in GitHub's Markdown. titled: the title stands above it in bold."""
        parts = []
        if titled and self.title:
            parts.append(f"**{printable(self.title)}**")
        parts.append("\n".join(self.markdown_rows()))

        if self.caption:
            parts.append(escaped(printable(self.caption)))
        parts += map(printable, self.notes)
        return "\n\n".join(parts)

    def markdown_rows(self) -> list[str]:
        """Return the lines of the table alone."""
        numbers = len(self.head) - self.words
        rule = ["---"] * self.words + ["---:"] * numbers
        heading = map(one_line, self.head)

        lines = [markdown_row(heading), markdown_row(rule)]
        for row in self.rows:
            lines.append(markdown_row(map(markdown_cell, row)))
        return lines


def token_heads(token_counts: Iterable[int]) -> list[str]:
    """Return the headings "T=1", "T=57" and so on."""
    return [f"T={tokens}" for tokens in token_counts]


def as_cell(entry: Entry) -> Cell:
    """Return an entry as a Cell of one line, in which control characters are written out."""
    if entry is None:
        return Cell("-")
    if isinstance(entry, Cell):
        return Cell(one_line(entry.text), entry.mark)
    return Cell(one_line(str(entry)))


def one_line(text: str) -> str:
    """Return a text whose line ends and other control characters are written out."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def decimal(value: float | None, digits: int, unit: str = "") -> str:
    """Return a number with so many digits, "-" for None and NaN."""
    if pd.isna(value):
        return "-"
    return f"{value:.{digits}f}{unit}"


def escaped(text: str) -> str:
    """Return a text for Markdown, whose stars are no markup."""
    return text.replace("*", "\\*")


def markdown_cell(entry: Entry) -> str:
    """Return an entry for Markdown, whose stars and bars are no markup."""
    cell = as_cell(entry)
    text = escaped(cell.text).replace("|", "\\|")
    if cell.mark == "best" and text:
        return f"**{text}**"
    return text


def markdown_row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


@dataclass(frozen=True)
class Column:
    """A column as a terminal shows it.

    place: in a row. width: of its longest text. least: so narrow it can be; headings and sentences
    are broken then.
    """

    place: int
    name: str
    is_words: bool
    width: int
    least: int


@dataclass(frozen=True)
class InTerminal:
    """A table that fits into the terminal it is printed in, by leaving columns out.

    No text is cut. The first `keys` columns are never left out, only broken into lines where they
    alone are wider than the terminal.
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
    """Return which columns a terminal has no room for, "" where it shows all."""
    names = [column.name for column in columns if column not in shown]
    if not names:
        return ""
    terminal = f"the terminal is {max_width} characters wide"
    return f"Left out, as {terminal}: {', '.join(names)}."


def measured_column(table: Table, place: int, max_width: int) -> Column:
    """Return a table's column at this place, measured.

    One with words may be broken into lines; the first one only where it would take more than two
    thirds of the terminal.
    """
    heading = one_line(table.head[place])
    texts = [as_cell(row[place]).text for row in table.rows]
    is_words = place < table.words

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
    """Return the columns that are shown, in their order."""
    others = columns[table.keys :]
    others.sort(key=lambda column: column.name not in table.important)

    chosen = columns[: table.keys]
    for column in others:
        widths = [each.least for each in [*chosen, column]]
        if total_width(widths) <= max_width:
            chosen.append(column)
    return sorted(chosen, key=lambda column: column.place)


def shown_widths(columns: list[Column], max_width: int) -> list[int]:
    """Return the widths of the shown columns: the space that is left goes to broken columns."""
    widths = [column.least for column in columns]
    while total_width(widths) > max_width and max(widths) > 1:  # the keys alone are too wide
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

"""The one table, and how it is drawn: in a terminal as wide as it is, or as Markdown.

What others have named may hold control characters, which are shown and not obeyed.
"""

import itertools
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
    sections: list[list[list[Entry]]]
    title: str = ""
    words: int = 1
    caption: str = ""
    notes: list[str] = field(default_factory=list)
    keys: int = 1
    important: tuple[str, ...] = ()

    def terminal(self) -> "InTerminal":
        """Return what a rich Console prints."""
        return InTerminal(self)

    def markdown(self, titled: bool = False) -> str:
        """Return the table in GitHub's Markdown. titled: the title stands above it in bold."""
        lines = []
        if titled and self.title:
            lines += [f"**{printable(self.title)}**", ""]
        lines += self.markdown_rows()

        if self.caption:
            lines += ["", escaped(printable(self.caption))]
        for note in self.notes:
            lines += ["", printable(note)]
        return "\n".join(lines)

    def markdown_rows(self) -> list[str]:
        """Return the lines of the table alone."""
        rules = ["---"] * self.words + ["---:"] * len(self.head)
        rule = rules[: len(self.head)]

        lines = [markdown_row(map(one_line, self.head)), markdown_row(rule)]
        for section in self.sections:
            for row in section:
                cells = map(as_cell, row)
                lines.append(markdown_row(map(markdown_cell, cells)))
        return lines


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


def markdown_cell(cell: Cell) -> str:
    """Return a cell for Markdown, whose stars and bars are no markup."""
    text = escaped(cell.text).replace("|", "\\|")
    return f"**{text}**" if cell.mark == "best" and text else text


def markdown_row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


@dataclass(frozen=True)
class Column:
    """A column as a terminal shows it.

    width: of its longest text. least: so narrow it can be; headings and sentences are broken then.
    """

    name: str
    cells: list[Cell]
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
        columns = columns_of(table, options.max_width)
        shown = fitting(table, columns, options.max_width)
        widths = shown_widths(shown, options.max_width)

        if table.title:
            yield Text(printable(table.title), overflow="fold")
        yield drawn(table, shown, widths)

        texts = [table.caption, *table.notes]
        left_out = [column.name for column in columns if column not in shown]
        if left_out:
            names = ", ".join(left_out)
            terminal = f"the terminal is {options.max_width} characters wide"
            texts.insert(0, f"Left out, as {terminal}: {names}.")

        text_width = min(options.max_width, max(TEXT_WIDTH, total_width(widths)))
        for text in filter(None, texts):
            below = Text(printable(text), overflow="fold")
            yield from screen.render(below, options.update(width=text_width))


def columns_of(table: Table, max_width: int) -> list[Column]:
    """Return all columns of a table, measured.

    Those with words may be broken into lines; the first one only where it would take more than two
    thirds of the terminal.
    """
    columns = []
    for at, name in enumerate(table.head):
        heading = one_line(name)
        cells = [as_cell(row[at]) for rows in table.sections for row in rows]
        texts = [cell.text for cell in cells]
        is_words = at < table.words

        least = longest(texts)
        if at == 0:
            least = min(least, max_width * 2 // 3)
        elif is_words:
            least = min(least, max(SENTENCE, longest_word(texts)))
        least = max(least, longest_word([heading]))
        columns.append(Column(heading, cells, is_words, longest([heading, *texts]), least))
    return columns


def longest(texts: list[str]) -> int:
    """Return the width of the widest of these texts."""
    return max(map(cell_len, texts), default=0)


def longest_word(texts: list[str]) -> int:
    """Return the width of the widest word in these texts."""
    return max((longest(text.split()) for text in texts), default=0)


def fitting(table: Table, columns: list[Column], max_width: int) -> list[Column]:
    """Return the columns that are shown, in their order."""
    others = columns[table.keys :]
    others.sort(key=lambda column: column.name not in table.important)

    chosen = columns[: table.keys]
    for column in others:
        if total_width([each.least for each in [*chosen, column]]) <= max_width:
            chosen.append(column)
    return sorted(chosen, key=columns.index)


def shown_widths(columns: list[Column], max_width: int) -> list[int]:
    """Return the widths of the shown columns: the space that is left goes to broken columns."""
    widths = [column.least for column in columns]
    while total_width(widths) > max_width and max(widths) > 1:  # the keys alone are too wide
        widths[widths.index(max(widths))] -= 1

    for at, column in enumerate(columns):
        space = max(max_width - total_width(widths), 0)
        widths[at] += min(space, column.width - column.least)
    return widths


def total_width(widths: list[int]) -> int:
    return TABLE_EDGE + sum(widths) + COLUMN_EDGES * len(widths)


def drawn(table: Table, columns: list[Column], widths: list[int]) -> RichTable:
    """Return rich's table of these columns."""
    rich_table = RichTable(box=box.HEAVY_HEAD)
    for column, width in zip(columns, widths, strict=True):
        justify = "left" if column.is_words else "right"
        rich_table.add_column(Text(column.name), justify=justify, overflow="fold", width=width)

    rows = zip(*(column.cells for column in columns), strict=True)
    for section in table.sections:
        for row in itertools.islice(rows, len(section)):
            rich_table.add_row(*(Text(cell.text, style=STYLES[cell.mark]) for cell in row))
        rich_table.add_section()
    return rich_table

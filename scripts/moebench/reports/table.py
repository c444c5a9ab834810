"""Table: what reports/ and commands/ make of rows and columns, and how it is drawn as Markdown.
terminal.py draws it in a terminal.

    Table(["solution", "ms"], [[["NAME", Cell("0.312", "best")], ["OTHER", None]]]).markdown()

Texts of other projects may hold control characters, which are written out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import pandas as pd

from moebench.core.printable import printable


@dataclass(frozen=True)
class Cell:
    """A text, "0.312 (1.25)", and how it is marked: "best", "good", "stale", "failed" or ""."""

    text: str
    mark: str = ""


Entry = Cell | str | int | None
Row = list[Entry]
Numbers = TypeVar("Numbers", pd.Series, pd.DataFrame)


@dataclass(frozen=True)
class Table:
    """Rows under named columns.

    head: the columns' names, of which the first `word_columns` hold words and the others numbers.
    sections: blocks of rows, with a rule between two of them. An entry that is no Cell has no mark;
    None is shown as "-". caption: explains the cells. notes: stand below it.

    A narrow terminal shows a part of the columns: the first `key_columns`, which tell the rows
    apart, then those that `important` names, then from the left what there is room for.
    """

    head: list[str]
    sections: list[list[Row]]
    title: str = ""
    word_columns: int = 1
    caption: str = ""
    notes: list[str] = field(default_factory=list)
    key_columns: int = 1
    important: tuple[str, ...] = ()

    @classmethod
    def of_frame(cls, frame: pd.DataFrame, **fields: object) -> "Table":
        """Return the table of a DataFrame's columns and rows."""
        return cls(list(frame.columns), [frame_rows(frame)], **fields)

    @property
    def rows(self) -> list[Row]:
        """Return the rows of all sections."""
        return [row for section in self.sections for row in section]

    def __str__(self) -> str:
        return self.markdown()

    def markdown(self, titled: bool = False) -> str:
        """Return the table in GitHub's Markdown. titled: the title stands above it in bold."""
        parts = []
        if titled and self.title:
            parts.append(f"**{printable(self.title)}**")

        numbers = len(self.head) - self.word_columns
        rule = ["---"] * self.word_columns + ["---:"] * numbers
        heading = map(one_line, self.head)

        lines = [markdown_row(heading), markdown_row(rule)]
        for row in self.rows:
            lines.append(markdown_row(map(markdown_cell, row)))
        parts.append("\n".join(lines))

        if self.caption:
            parts.append(escaped(printable(self.caption)))
        parts += map(printable, self.notes)
        return "\n\n".join(parts)


def frame_rows(frame: pd.DataFrame) -> list[Row]:
    """Return the rows of a DataFrame, with None for NaN."""
    entries = frame.astype(object).where(frame.notna(), None)
    return entries.values.tolist()


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
    """Return a number with so many decimal places, "-" for None and NaN."""
    if pd.isna(value):
        return "-"
    return f"{value:.{digits}f}{unit}"


def decimals(values: Numbers, digits: int, unit: str = "") -> Numbers:
    """Return the numbers of a Series or a DataFrame as `decimal` writes them."""
    return values.map(partial(decimal, digits=digits, unit=unit))


def escaped(text: str) -> str:
    """Return a text for Markdown in which stars are no markup."""
    return text.replace("*", "\\*")


def markdown_cell(entry: Entry) -> str:
    """Return an entry for a row in Markdown, in which stars and bars are no markup."""
    cell = as_cell(entry)
    text = escaped(cell.text).replace("|", "\\|")
    if cell.mark == "best" and text:
        return f"**{text}**"
    return text


def markdown_row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"

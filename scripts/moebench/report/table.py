"""The one table: made once, shown in a terminal or as Markdown."""

import sys
from dataclasses import dataclass, field

import pandas as pd
from rich import box
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from moebench.core.printable import printable

STYLES = {"": "", "best": "bold green", "good": "green", "stale": "dim", "failed": "bold red"}


class Terminal(Console):
    """Shows control characters in a text, and does not obey them: names and logs are others'."""

    def print(self, *objects, **how) -> None:
        shown = [printable(each) if isinstance(each, str) else each for each in objects]
        super().print(*shown, **how)


def console(width: int = 160) -> Console:
    """The terminal; so many columns wide where the output is none."""
    return Terminal(width=None if sys.stdout.isatty() else width, highlight=False, markup=False)


@dataclass(frozen=True)
class Cell:
    """Text and what it stands for, a key of STYLES."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """head: the columns' names, of which the first `words` hold words and the others numbers.

    sections: blocks of rows, a rule between two of them; what is no Cell is shown without a mark,
    None as "-". caption explains the cells; notes stand below it.
    """

    head: list[str]
    sections: list[list[list[Cell | str | int | None]]]
    title: str = ""
    words: int = 1
    caption: str = ""
    notes: list[str] = field(default_factory=list)

    def terminal(self) -> Group:
        """For rich's Console."""
        title, caption = (
            Text(printable(text)) if text else None for text in (self.title, self.caption)
        )
        left = {"title_justify": "left", "caption_justify": "left"}
        shown = RichTable(title=title, caption=caption, box=box.HEAVY_HEAD, **left)
        for at, name in enumerate(self.head):
            shown.add_column(Text(name), justify="left" if at < self.words else "right")
        for rows in self.sections:
            for row in rows:
                shown.add_row(
                    *(
                        Text(printable(cell.text), style=STYLES[cell.mark])
                        for cell in map(as_cell, row)
                    )
                )
            shown.add_section()
        return Group(shown, *(Text(printable(note)) for note in self.notes))

    def markdown(self, titled: bool = False) -> str:
        """GitHub's Markdown; titled: the title stands above it in bold."""
        rule = ["---" if at < self.words else "---:" for at in range(len(self.head))]
        rows = [
            [markdown_cell(as_cell(cell)) for cell in row] for rows in self.sections for row in rows
        ]
        lines = [f"**{self.title}**", ""] if titled and self.title else []
        lines += ["| " + " | ".join(row) + " |" for row in (self.head, rule, *rows)]
        for line in [*([escaped(self.caption)] if self.caption else []), *self.notes]:
            lines += ["", line]
        return "\n".join(lines)


def as_cell(cell: Cell | str | int | None) -> Cell:
    return cell if isinstance(cell, Cell) else Cell("-" if cell is None else str(cell))


def decimal(value: float | None, digits: int, unit: str = "") -> str:
    """ "-" for None and NaN."""
    return "-" if pd.isna(value) else f"{value:.{digits}f}{unit}"


def escaped(text: str) -> str:
    """Text whose stars are no markup."""
    return text.replace("*", "\\*")


def markdown_cell(cell: Cell) -> str:
    text = escaped(cell.text).replace("|", "\\|")
    return f"**{text}**" if cell.mark == "best" and text else text

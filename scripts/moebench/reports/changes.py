"""The table of `moebench compare --against`: what a change made slower, faster or wrong.

It is drawn from the rows that `compare` of results/against.py returns, one for each cell that was
run before the change or after it.
"""

import pandas as pd

from moebench.operators import catalogue
from moebench.reports.measured_with import ranges_text
from moebench.reports.table import Cell, Row, Table
from moebench.results.against import WORSE

HEAD = ["solution", "where", "T", "before, ms", "after, ms", "change", "mark"]
# mark -> in the title
MARKS = {"slower": "slower", "failing": "newly failing", "faster": "faster"}


def changes_table(rows: pd.DataFrame) -> Table:
    """Return a row for each cell that `against.compare` marked as slower, failing or faster."""
    both = rows[rows.side == "both"]
    marked = both[both.mark != ""]
    several_definitions = both.definition.nunique() > 1
    counts = []
    for mark, text in MARKS.items():
        count = (marked.mark == mark).sum()
        counts.append(f"{count} {text}")

    sides = []
    for side in ("before", "after"):
        columns = {f"{name}_{side}": name for name in ("ms", "runs", "range_from")}
        sides.append(both[list(columns)].rename(columns=columns))
    ranges = ranges_text(pd.concat(sides))

    notes = [f"A change: the ranges of both sides' runs do not overlap; {ranges}"]
    for side, count in rows.side.value_counts().items():
        if side != "both":
            notes.append(f"only {side}: {count} cells")

    table_rows = [change_row(row, several_definitions) for row in marked.itertuples()]
    return Table(
        title=f"{', '.join(counts)}, of {len(both)} compared",
        head=HEAD,
        sections=[table_rows],
        notes=notes,
        word_columns=2,
        key_columns=3,
        important=("change", "mark"),
    )


def change_row(row, with_definition: bool) -> Row:
    """Return a row of the table. row: of `against.compare`, as itertuples yields it."""
    where = [row.hardware, row.tolerance]
    if with_definition:
        key = catalogue.by_name().get(row.definition, row.definition)
        where.append(key)

    before = side_text(row.failure_before, row.ms_before, row.runs_before)
    after = side_text(row.failure_after, row.ms_after, row.runs_after)
    change = f"{row.change:+.1%}" if pd.notna(row.change) else None
    mark = Cell(row.mark, "failed" if row.mark in WORSE else "good")
    where_text = ", ".join(where)
    return [row.solution, where_text, row.tokens, before, after, change, mark]


def side_text(failure: str | float, ms: float, runs: float) -> str:
    """Return the cell of a side: its status where it failed, else its time, or "passed" if it was
    not timed.
    """
    if pd.notna(failure):
        return failure
    if pd.isna(ms):
        return "passed"
    text = f"{ms:.4f}"
    if runs > 1:
        text += f" ({runs:.0f} runs)"
    return text

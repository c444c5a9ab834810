"""What a change did to the recorded times, as Markdown for a pull request's comment."""

import pandas as pd

from harness.report.table import Table
from harness.results.regression import LIMIT
from harness.results.trace_table import CONDITION


def changes_table(cells: pd.DataFrame) -> Table:
    def side(cell, name: str) -> str:
        failure, ms = getattr(cell, f"failure_{name}"), getattr(cell, f"ms_{name}")
        return failure if pd.notna(failure) else f"{ms:.4f}" if pd.notna(ms) else "passed"

    rows = [
        [
            *(cell.solution, cell.uuid[:8], str(cell.seq_len), side(cell, "before"), side(cell, "after")),
            f"{cell.change:+.1%}" if pd.notna(cell.change) else "",
            cell.mark,
        ]
        for cell in cells.itertuples()
    ]
    return Table(["solution", "workload", "T", "before, ms", "after, ms", "change", "mark"], [rows], words=2)


def condition_blocks(cells: pd.DataFrame) -> list[str]:
    """Cells of one condition that both sides have: the marked first, all of them folded; then those of one side."""
    blocks, both = [], cells[cells.side == "both"]
    if (both.mark != "").any():
        blocks.append(changes_table(both[both.mark != ""]).markdown())
    if len(both):
        every = changes_table(both).markdown()
        blocks += ["<details><summary>Every solution and workload</summary>", every, "</details>"]
    for (side, solution), only in cells[cells.side != "both"].groupby(["side", "solution"], sort=False):
        blocks.append(f"Only {side}: {solution} at T = {', '.join(map(str, only.seq_len))}")
    return blocks


def markdown(found: pd.DataFrame) -> str:
    """Of `compare`'s result: how many are marked, then each condition, then what could not be compared."""
    compared = found[found.side == "both"]
    slower, failing = ((compared.mark == mark).sum() for mark in ("slower", "failing"))
    marked = f"**{slower} slower by more than {LIMIT:.0%}, {failing} newly failing**, of {len(compared)} compared."
    blocks, apart = ["## Benchmark against main", marked], []
    for (definition, hardware, versions, tolerance, protocol), cells in found.groupby(CONDITION):
        run, details = f"{hardware}, {tolerance}", f"{definition}; {protocol}; {versions}"
        side, *others = cells.side.unique()
        if side != "both" and not others:
            apart.append(f"- only {side}, {cells[f'traces_{side}'].sum():.0f} traces: {run}; {details}")
        else:
            blocks += [f"### {run}", details, *condition_blocks(cells)]
    if apart:
        blocks += ["### Not compared", "Run under conditions that the other side has no trace of:", "\n".join(apart)]
    return "\n\n".join(blocks) + "\n"

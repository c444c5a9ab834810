"""Whether a change made a solution slower or wrong: two trace sets, before and after, row by row.

Only traces of one condition (definition, GPU, tolerance, clock, versions, protocol) are compared.
Of each side the runs of its newest source count. A time has changed where the ranges of both sides'
runs do not overlap; one failure is a failure.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from moebench.results import spread, trace_files
from moebench.results.measurements import CELL, CONDITION, cells
from moebench.results.trace_rows import rows_from, source_hash

KEY = [*CELL, "tokens", *CONDITION]
SIDES = {"both": "both", "left_only": "before", "right_only": "after"}  # pandas' words -> ours
COMPARED = ["failure", "ms", "ms_low", "ms_high", "runs", "range_from"]
WORSE = ("failing", "slower")


def compare(before: list[Path], after: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return a row for each KEY of either side, and warnings of lines that could not be read.

    COMPARED with _before and _after, as ms_before: as in `one_side`, the ranges by
    `spread.with_ranges` over the cells of both sides;
    side: "both", "before" or "after";
    change: after / before - 1 of ms, NaN without both;
    mark: "failing" where it passed before and fails now, "slower", "faster" or "".
    """
    old, old_warnings = one_side(before)
    new, new_warnings = one_side(after)
    both = pd.concat({"before": old, "after": new})
    compared = spread.with_ranges(both)[[*KEY, *COMPARED]]

    rows = compared.loc["before"].merge(
        compared.loc["after"], how="outer", on=KEY, suffixes=("_before", "_after"), indicator="side"
    )
    rows["side"] = rows.side.map(SIDES).astype(str)
    rows["change"] = rows.ms_after / rows.ms_before - 1
    rows["mark"] = marks(rows)
    return rows, [*old_warnings, *new_warnings]


def one_side(wanted: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return a row for each KEY below these paths, and warnings of lines that could not be read.

    failure: the status of a trace that did not pass, else NaN; ms: the median of the runs, NaN
    where one failed or was not timed; the others as in `measurements.cells`. Raises UserError where
    there is nothing to read.
    """
    recorded, warnings = trace_files.read(wanted)
    rows = rows_from([each.trace for each in recorded])
    side = cells(of_newest_source(rows), KEY)
    side["failure"] = side.status.mask(side.passed)
    return side, warnings


def of_newest_source(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of each KEY the rows of its newest source."""
    rows = rows.sort_values("timestamp", kind="stable")
    rows["code"] = source_hash(rows)
    newest = rows.groupby(KEY).code.transform("last")
    return rows[rows.code == newest].drop(columns="code")


def marks(rows: pd.DataFrame) -> np.ndarray:
    """Return what changed in each row, as in `compare`; nothing where the ranges overlap."""
    passed_before = (rows.side == "both") & rows.failure_before.isna()
    failing = passed_before & rows.failure_after.notna()
    slower = rows.ms_low_after > rows.ms_high_before
    faster = rows.ms_high_after < rows.ms_low_before
    return np.select([failing, slower, faster], ["failing", "slower", "faster"], "")

"""Whether a change made a solution slower or wrong: two trace sets, before and after, row by row.

`moebench compare --against` calls `compare`; reports/changes.py draws the rows it returns.

Two traces are compared only if they agree in definition, GPU, tolerance, clock, versions and
protocol. On each side only the runs of the newest source count. A time has changed where the ranges
of both sides' runs do not overlap; a cell has failed if one of its runs has.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from moebench.results import spread, trace_files
from moebench.results.measurements import CELL, CONDITION, merge_runs
from moebench.results.trace_rows import of_newest_source, rows_from

KEY = [*CELL, "tokens", *CONDITION]
# pandas' words -> ours
SIDES = {"both": "both", "left_only": "before", "right_only": "after"}
COMPARED = ["failure", "ms", "ms_low", "ms_high", "runs", "range_from"]
WORSE = ("failing", "slower")


def compare(before: list[Path], after: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return a row for each KEY of either side, and warnings of lines that could not be read.

    Beside KEY the columns are:
    ms_before, ms_after and so on, for each of COMPARED: what `read_side` says of that side, with
    ranges by `spread.with_ranges` over the cells of both sides;
    side: "both", "before" or "after";
    change: ms_after / ms_before - 1, NaN where a side is missing;
    mark: "failing" where it passed before and fails now, "slower", "faster" or "".
    """
    old, old_warnings = read_side(before)
    new, new_warnings = read_side(after)
    both = pd.concat({"before": old, "after": new})
    compared = spread.with_ranges(both)[[*KEY, *COMPARED]]

    rows = compared.loc["before"].merge(
        compared.loc["after"],
        how="outer",
        on=KEY,
        suffixes=("_before", "_after"),
        indicator="side",
    )
    rows["side"] = rows.side.map(SIDES).astype(str)
    rows["change"] = rows.ms_after / rows.ms_before - 1
    rows["mark"] = marks(rows)
    return rows, [*old_warnings, *new_warnings]


def read_side(wanted: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return a row for each KEY below these paths, and warnings of lines that could not be read.

    The row is that of `measurements.merge_runs`, so ms is NaN where a run failed or was not timed.
    Its further column `failure` is the status of a run that did not pass, NaN where all passed.
    Raises UserError where there is nothing to read.
    """
    recorded, warnings = trace_files.read(wanted)
    rows = rows_from([each.trace for each in recorded])
    side = merge_runs(rows[of_newest_source(rows, KEY)], KEY)
    side["failure"] = side.status.mask(side.passed)
    return side, warnings


def marks(rows: pd.DataFrame) -> np.ndarray:
    """Return the `mark` of each row of `compare`."""
    passed_before = (rows.side == "both") & rows.failure_before.isna()
    failing = passed_before & rows.failure_after.notna()
    slower = rows.ms_low_after > rows.ms_high_before
    faster = rows.ms_high_after < rows.ms_low_before
    return np.select([failing, slower, faster], ["failing", "slower", "faster"], "")

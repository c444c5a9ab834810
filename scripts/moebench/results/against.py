"""Whether a change made a solution slower or wrong: two trace sets, before and after, row by row.

Only traces of one condition (definition, GPU, tolerance, clock, versions, protocol) are compared.
Of several traces the newest source's count: the fastest is its time, as disturbances only ever add
time, and one failure is a failure.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from moebench.results import trace_files
from moebench.results.measurements import (
    CELL,
    CONDITION,
    rows_from,
)

LIMIT = 0.05  # slower by more than this share of the time before is a regression
KEY = [*CELL, "tokens", *CONDITION]
SIDES = {"both": "both", "left_only": "before", "right_only": "after"}


def compare(before: list[Path], after: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return a row for each KEY of either side, and warnings of lines that could not be read.

    failure_before, failure_after, ms_before, ms_after: as in `one_side`;
    side: "both", "before" or "after";
    change: after / before - 1 of ms, NaN without both;
    mark: "failing" where it passed before and fails now, "slower", or "".
    """
    old, old_warnings = one_side(before)
    new, new_warnings = one_side(after)

    rows = old.merge(new, "outer", KEY, suffixes=("_before", "_after"), indicator="side")
    rows["side"] = rows.side.map(SIDES).astype(str)
    rows["change"] = rows.ms_after / rows.ms_before - 1

    passed_before = (rows.side == "both") & rows.failure_before.isna()
    failing = passed_before & rows.failure_after.notna()
    rows["mark"] = np.select([failing, rows.change > LIMIT], ["failing", "slower"], "")
    return rows, [*old_warnings, *new_warnings]


def one_side(wanted: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return a row for each KEY below these paths, and warnings of lines that could not be read.

    failure: the status of a trace that did not pass, else NaN; ms: NaN where it failed or was not
    timed. Raises UserError where there is nothing to read.
    """
    recorded, warnings = trace_files.read(wanted)
    rows = rows_from([each.trace for each in recorded])
    rows = of_newest_source(rows.sort_values("timestamp", kind="stable"))

    rows["failure"] = rows.status.where(~rows.passed)
    of_key = rows.groupby(KEY)
    side = pd.DataFrame({"failure": of_key.failure.first(), "ms": of_key.ms.min()}).reset_index()
    side["ms"] = side.ms.where(side.failure.isna())
    return side, warnings


def of_newest_source(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of each KEY the rows of its newest source. rows: the newest last."""
    source = rows.source_fingerprint.fillna(rows.source_sha1).fillna("")
    newest = source.groupby([rows[column] for column in KEY]).transform("last")
    return rows[source == newest].copy()

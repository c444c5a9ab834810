"""Whether a change made a solution slower or wrong: two trace sets, before and after, cell by cell.

Only traces of one condition (definition, GPU, tolerance, clock, versions, protocol) are compared.
Of several of a cell the newest source's count: the fastest is its time, as disturbances only ever
add time, and one failure is a failure.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from moebench.results import trace_files
from moebench.results.table import CELL, CONDITION, of_traces

LIMIT = 0.05  # slower by more than this share of the time before is a regression
KEY = [*CELL, "tokens", *CONDITION]


def one_side(given: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    """A row for each KEY: failure (the status of a trace that did not pass, else NaN) and ms (NaN
    where it failed or was not timed); and warnings. Raises UserError where there is nothing to
    read."""
    recorded, warnings = trace_files.read(given)
    rows = of_traces([found.trace for found in recorded]).sort_values("timestamp", kind="stable")
    source = rows.source_fingerprint.fillna(rows.source_sha1).fillna("")
    rows = rows[source == source.groupby([rows[column] for column in KEY]).transform("last")]
    cells = rows.assign(failure=rows.status.where(~rows.passed)).groupby(KEY)
    found = pd.DataFrame({"failure": cells.failure.first(), "ms": cells.ms.min()}).reset_index()
    return found.assign(ms=found.ms.where(found.failure.isna())), warnings


def compare(before: list[Path], after: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    """A row for each KEY of either side: failure and ms with _before and _after; side ("both",
    "before", "after"); change (after / before - 1 of ms, NaN without both); mark ("failing" where
    it passed before, "slower", or "")."""
    (old, lines), (new, more) = one_side(before), one_side(after)
    found = old.merge(new, "outer", KEY, suffixes=("_before", "_after"), indicator="side")
    found["side"] = found.side.map(
        {"both": "both", "left_only": "before", "right_only": "after"}
    ).astype(str)
    found["change"] = found.ms_after / found.ms_before - 1
    failing = (found.side == "both") & found.failure_after.notna() & found.failure_before.isna()
    return found.assign(
        mark=np.select([failing, found.change > LIMIT], ["failing", "slower"], "")
    ), [*lines, *more]

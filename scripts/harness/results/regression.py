"""Whether a change made a solution slower or wrong: two trace sets, before and after, cell by cell.

Only traces of one condition (the same definition, machine, versions, tolerance and protocol) are compared. Where one
side has several traces of a cell, the newest source's count; the fastest of them is its time, as disturbances only ever
add time, and one failure makes it failing.
"""

import numpy as np
import pandas as pd

from harness.results.trace_files import Recorded
from harness.results.trace_table import CONDITION, trace_table

LIMIT = 0.05  # slower by more than this share of the time before is a regression
KEY = [*CONDITION, "solution", "seq_len", "uuid"]


def one_side(recorded: list[Recorded]) -> pd.DataFrame:
    """A row for each KEY: failure (the status of a trace that did not pass), ms (none where it failed or was not timed)
    and traces, their number."""
    traces = trace_table(recorded).sort_values("timestamp", kind="stable").fillna({"solution_sha1": ""})
    of_newest = traces.solution_sha1 == traces.groupby(KEY).solution_sha1.transform("last")
    failure = traces.status.where(traces.status != "PASSED")
    cells = traces.assign(failure=failure)[of_newest].groupby(KEY)
    found = pd.DataFrame({"failure": cells.failure.first(), "ms": cells.latency_ms.min()})
    return found.assign(ms=found.ms.where(found.failure.isna()), traces=traces.groupby(KEY).size()).reset_index()


def compare(before: list[Recorded], after: list[Recorded]) -> pd.DataFrame:
    """A row for each KEY of either side, sorted by it.

    Columns: KEY; failure, ms and traces as in `one_side`, with _before and _after; side ("both", or the only one:
    "before", "after"); change (after / before - 1 of ms, none without both); mark ("failing" where it passed before,
    "slower", or "").
    """
    found = one_side(before).merge(one_side(after), "outer", KEY, suffixes=("_before", "_after"), indicator="side")
    found["side"] = found.side.map({"both": "both", "left_only": "before", "right_only": "after"}).astype(str)
    found["change"] = found.ms_after / found.ms_before - 1
    failing = (found.side == "both") & found.failure_after.notna() & found.failure_before.isna()
    return found.assign(mark=np.select([failing, found.change > LIMIT], ["failing", "slower"], ""))

"""How far the times of one cell lie apart, and so which differences between cells mean nothing.

A cell's range goes from the least to the greatest time of its runs. Where a cell was run once, a
range is assumed: 0.100 ms becomes 0.098 to 0.102 where other cells like it vary by 4%. Two cells
are tied where their ranges overlap. measurements.py, against.py and reports/run_table.py call this.
"""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

# The width of a range, greatest time / least time, where nothing says how far times lie apart.
ASSUMED = 1.05

# Cells that share these columns were timed in the same way.
ALIKE = ["hardware", "clock", "protocol"]

# A single run's range is as wide as the widest of repeated cells that share these columns, at the
# nearest T. A solution of many launches varies several times as much as one of a single launch.
ALIKE_RANGES = [*ALIKE, "solution"]

# Values of the column range_from: what a cell's range was taken from
SEVERAL_RUNS = "runs"  # the cell's runs
OTHER_CELLS = "other cells"  # repeated cells that share ALIKE_RANGES, at the nearest T
TRIALS = "trials"  # the trials of the cell's only run
NOT_KNOWN = "assumed"  # ASSUMED


def nearest_tokens(tokens: int, among: Iterable[int]) -> int:
    """Return the token count nearest to `tokens` on a logarithmic scale, the lesser of two."""

    def distance(other: int) -> tuple[float, int]:
        ratio = (other or 0.5) / (tokens or 0.5)
        return abs(math.log(ratio)), other

    return min(among, key=distance)


def with_ranges(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with ms_low and ms_high, also of those that were run once, and range_from:
    SEVERAL_RUNS, OTHER_CELLS, TRIALS or NOT_KNOWN.

    cells: as `measurements.merge_runs` returns them.
    """
    if not len(cells):
        return cells.assign(range_from="")

    parts = []
    for _, alike in cells.groupby(ALIKE_RANGES, sort=False):
        parts.append(alike_with_ranges(alike))
    return pd.concat(parts).loc[cells.index]


def alike_with_ranges(cells: pd.DataFrame) -> pd.DataFrame:
    """Do for cells that agree in ALIKE_RANGES what `with_ranges` does for all."""
    is_repeated = (cells.runs > 1) & cells.ms.notna()
    repeated = cells[is_repeated]
    widths = repeated.ms_high / repeated.ms_low
    widest = widths.groupby(repeated.tokens).max()

    # the width of a single run's range, by repeated cells or by the run's trials
    trials = cells.trials_ms.map(width_of_trials, na_action="ignore").astype(float)
    if len(widest):
        nearest = [nearest_tokens(tokens, widest.index) for tokens in cells.tokens]
        width = np.fmax(widest[nearest].values, trials)
        range_from = pd.Series(OTHER_CELLS, cells.index)
    else:
        width = trials.fillna(ASSUMED)
        range_from = trials.notna().map({True: TRIALS, False: NOT_KNOWN})

    # the range goes by the same factor above the time and below it
    low = cells.ms / width**0.5
    high = cells.ms * width**0.5
    return cells.assign(
        ms_low=cells.ms_low.where(is_repeated, low),
        ms_high=cells.ms_high.where(is_repeated, high),
        range_from=range_from.mask(is_repeated, SEVERAL_RUNS),
    )


def width_of_trials(text: str) -> float:
    """Return greatest time / least time. text: as in Provenance.trials_ms, "0.312 0.314"."""
    times = [float(ms) for ms in text.split()]
    return max(times) / min(times)


def tied_with_fastest(
    cells: pd.DataFrame, ms: pd.Series, workload: list[pd.Series]
) -> pd.Series:
    """Return whether each cell's range overlaps that of the fastest cell of its workload.

    ms: the times that are compared, NaN for cells that are left out. workload: columns that tell
    workloads apart.
    """
    least = ms.groupby(workload).transform("min")
    high_of_fastest = cells.ms_high.where(ms == least)
    highest = high_of_fastest.groupby(workload).transform("max")
    return ms.notna() & (cells.ms_low <= highest)

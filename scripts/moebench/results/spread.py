"""How far the times of one cell lie apart, and so which differences are none.

A cell's range goes from the least to the greatest time of its runs. Where a cell was run once, a
range is assumed: 0.100 ms becomes 0.098 to 0.102 where other cells like it vary by 4%. Two cells
are tied where their ranges overlap.
"""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

# The greatest time over the least, taken where no cell like it was run twice.
ASSUMED = 1.05

# Times of cells that share these columns are taken alike.
ALIKE = ["hardware", "clock", "protocol"]

# A single run's range is as wide as the widest of repeated cells that share these columns, at the
# nearest T. A solution of many launches varies several times as much as one of a single launch.
ALIKE_RANGES = [*ALIKE, "solution"]

# Whence a range is: the cell's runs; the solution's cells of the nearest T that were run more
# often; the trials of its only run; ASSUMED.
SEVERAL_RUNS = "runs"
OTHER_CELLS = "other cells"
TRIALS = "trials"
NOT_KNOWN = "assumed"


def nearest_tokens(tokens: int, among: Iterable[int]) -> int:
    """Return the token count nearest to `tokens` on a logarithmic scale, the lesser of two."""

    def distance(other: int) -> tuple[float, int]:
        ratio = (other or 0.5) / (tokens or 0.5)
        return abs(math.log(ratio)), other

    return min(among, key=distance)


def with_ranges(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with the ranges of those that were run once, and whence each range is.

    cells: of `measurements.cells`. Columns that are set: ms_low, ms_high, and range_from:
    SEVERAL_RUNS, OTHER_CELLS, TRIALS or NOT_KNOWN.
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

    # Of a single run, by what is known of others like it, or of its trials.
    trials = cells.trials_ms.map(width_of_trials, na_action="ignore").astype(float)
    if len(widest):
        nearest = [nearest_tokens(tokens, widest.index) for tokens in cells.tokens]
        width = np.fmax(widest[nearest].values, trials)
        range_from = pd.Series(OTHER_CELLS, cells.index)
    else:
        width = trials.fillna(ASSUMED)
        range_from = trials.notna().map({True: TRIALS, False: NOT_KNOWN})

    # By the same factor above the time and below it.
    low = cells.ms / width**0.5
    high = cells.ms * width**0.5
    return cells.assign(
        ms_low=cells.ms_low.where(is_repeated, low),
        ms_high=cells.ms_high.where(is_repeated, high),
        range_from=range_from.mask(is_repeated, SEVERAL_RUNS),
    )


def width_of_trials(text: str) -> float:
    """Return the greatest time over the least. text: as Provenance.trials_ms, "0.312 0.314"."""
    times = [float(ms) for ms in text.split()]
    return max(times) / min(times)


def tied_with_fastest(cells: pd.DataFrame, ms: pd.Series, workload: list[pd.Series]) -> pd.Series:
    """Return whether each cell's range overlaps that of the fastest cell of its workload.

    ms: the times that are compared, NaN of cells that are not. workload: what tells workloads
    apart.
    """
    least = ms.groupby(workload).transform("min")
    high_of_fastest = cells.ms_high.where(ms == least)
    highest = high_of_fastest.groupby(workload).transform("max")
    return ms.notna() & (cells.ms_low <= highest)

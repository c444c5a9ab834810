"""Whether times repeat on another card and another day, by records/repeats.csv. docs/pages.py shows
the tables, and docs/computed.py takes numbers for sentences from the same cells.

A cell is one solution on one workload of the main definition, by the GPU's clock. The record has
every run on four cards of one kind: A once on one day, B and C five times in turns in the next
night, D five times in turns in the evening after it.
"""

import numpy as np
import pandas as pd

from moebench.core import paths
from moebench.reports.table import Table, decimal

# run in one night; their difference is the stated spread between cards
CARDS = ("B", "C")
REPEATED = (*CARDS, "D")
COMPARED = [("B", "A"), ("C", "A"), ("B", "D"), ("C", "D"), CARDS]
CELL = ["solution", "tokens", "uuid"]
MOST_TOKENS = 901  # beyond, the GPU is at its power limit
HEAD = [
    "medians of",
    "T",
    "cells",
    "in the range",
    "in the stated spread",
    "within 2%",
    "farthest",
]


def recorded() -> pd.DataFrame:
    """Return a row for each card and CELL: median ms, ms_low and ms_high of its runs."""
    runs = pd.read_csv(paths.REPEATS)
    times = runs.groupby(["card", *CELL]).ms
    return times.agg(ms="median", ms_low="min", ms_high="max")


def on_both(cells: pd.DataFrame, card: str, other: str) -> pd.DataFrame:
    """Return a row for each cell that two cards have: ms, ms_low and ms_high of the first card, and
    other_ms: the other card's median;
    ratio: ms / other_ms;
    apart: how far the two medians lie apart (`apart`).
    """
    other_ms = cells.ms[other].rename("other_ms")
    both = cells.loc[card].join(other_ms, how="inner")
    ratio = both.ms / both.other_ms
    return both.assign(ratio=ratio, apart=apart(ratio))


def apart(ratio: pd.Series) -> pd.Series:
    """Return how far ratios are from 1, the same for a ratio and its inverse: 1 for 2 and 0.5."""
    return np.maximum(ratio, 1 / ratio) - 1


def between_cards(cells: pd.DataFrame) -> pd.Series:
    """Return T -> how far the medians of one solution on both CARDS lie apart, at most."""
    return on_both(cells, *CARDS).apart.groupby("tokens").max()


def over_fastest(cells: pd.DataFrame, card: str) -> pd.Series:
    """Return solution -> its time on a card over that of the fastest solution, a geometric mean
    over the workloads.
    """
    logarithms = np.log(cells.ms[card].unstack("solution"))
    means = logarithms.dropna(axis="columns").mean()
    return np.exp(means - means.min())


def with_verdicts(cells: pd.DataFrame, card: str, other: str) -> pd.DataFrame:
    """Return the rows of `on_both`, with T in a column and two verdicts on the other card's median:
    in_range: whether it lies in the range of the first card's runs;
    in_spread: whether it lies in that range stretched at both ends by `between_cards` at its T.
    """
    both = on_both(cells, card, other)
    tokens = both.index.get_level_values("tokens")
    factor = 1 + between_cards(cells).reindex(tokens).to_numpy()
    in_range = both.other_ms.between(both.ms_low, both.ms_high)
    in_spread = both.other_ms.between(both.ms_low / factor, both.ms_high * factor)
    return both.assign(tokens=tokens, in_range=in_range, in_spread=in_spread)


def table() -> Table:
    """Return a row for each pair of cards, with few and with many tokens."""
    cells = recorded()
    rows = []
    for card, other in COMPARED:
        both = with_verdicts(cells, card, other)
        is_many = both.tokens > MOST_TOKENS
        rows.append(table_row(card, other, f"1 to {MOST_TOKENS}", both[~is_many]))
        rows.append(table_row(card, other, "more", both[is_many]))
    return Table(HEAD, [rows], word_columns=2)


def table_row(card: str, other: str, tokens: str, both: pd.DataFrame) -> list:
    """Return a row of `table`. For both CARDS in_spread is left out, as it is made of them."""
    in_range = both.in_range.sum()
    in_spread = None if (card, other) == CARDS else both.in_spread.sum()
    within_2_percent = (both.apart <= 0.02).sum()
    counts = [len(both), in_range, in_spread, within_2_percent]
    farthest = decimal(100 * both.apart.max(), 1, "%")
    return [f"{other} in {card}'s", tokens, *counts, farthest]


def ratios_table() -> Table:
    """Return a row for each solution but the fastest: `over_fastest` on each card that has runs in
    turns.
    """
    cells = recorded()
    by_card = pd.DataFrame({card: over_fastest(cells, card) for card in REPEATED})
    fastest_first = by_card.dropna().sort_values(REPEATED[-1])
    rows = []
    for name, ratios in fastest_first[1:].iterrows():
        rows.append([name, *(decimal(ratio, 2) for ratio in ratios)])
    return Table(["solution", *REPEATED], [rows])

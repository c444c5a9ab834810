"""Times on another card and another day."""

import pandas as pd
import pytest
from moebench.core import paths
from moebench.reports import repeats

# ms of runs by card, of the fastest solution and of another one, at one and at 2048 tokens
RUNS = {
    ("B", "fast", 1): [1.0, 1.1, 1.2],
    ("B", "other", 1): [2.0, 2.2, 2.4],
    ("B", "fast", 2048): [4.0, 4.0, 4.0],
    ("B", "other", 2048): [8.0, 8.0, 8.0],
    ("C", "fast", 1): [1.1, 1.21, 1.3],
    ("C", "other", 1): [2.2, 2.42, 2.6],
    ("C", "fast", 2048): [2.0, 2.0, 2.0],
    ("C", "other", 2048): [8.0, 8.0, 8.0],
    ("A", "fast", 1): [1.15],
    ("A", "other", 1): [1.9],
    ("A", "fast", 2048): [1.9],
    ("D", "fast", 1): [1.15, 1.15, 1.15],
    ("D", "other", 1): [4.0, 4.0, 4.0],
}


@pytest.fixture
def cells(tmp_path, monkeypatch):
    rows = []
    for (card, solution, tokens), times in RUNS.items():
        for ms in times:
            rows.append((card, solution, tokens, f"uuid {tokens}", ms))
    file = tmp_path / "repeats.csv"
    pd.DataFrame(rows, columns=["card", *repeats.CELL, "ms"]).to_csv(file, index=False)
    monkeypatch.setattr(paths, "REPEATS", file)
    return repeats.recorded()


def test_two_cards_lie_apart_by_their_medians_at_each_token_count(cells):
    between = repeats.between_cards(cells)
    assert between.to_dict() == pytest.approx({1: 0.1, 2048: 1.0})


def test_a_median_may_lie_in_the_range_in_the_stretched_range_or_in_neither(cells):
    both = repeats.with_verdicts(cells, "B", "A").droplevel("uuid")
    assert both.in_range.to_dict() == {
        ("fast", 1): True,
        ("other", 1): False,
        ("fast", 2048): False,
    }
    assert both.in_spread.to_dict() == {
        ("fast", 1): True,
        ("other", 1): True,
        ("fast", 2048): False,
    }


def test_ratios_to_the_fastest_are_geometric_means_over_the_workloads(cells):
    ratios = repeats.over_fastest(cells, "B")
    assert ratios["fast"] == 1.0
    assert ratios["other"] == pytest.approx(2.0)
    assert repeats.over_fastest(cells, "C")["other"] == pytest.approx(8**0.5)

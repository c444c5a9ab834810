"""What `compare` marks as slower, faster or failing, of traces from before and after a change.

trace("a", 7, 1.25) is of a solution "a" that took 1.25 ms with 7 tokens; the default is 1 ms.
"""

import pytest
from moebench.results import against
from recorded import trace, write


def marks(tmp_path, before, after):
    """Return the mark of each row that has traces on both sides."""
    old = write(tmp_path / "before.jsonl", before)
    new = write(tmp_path / "after.jsonl", after)
    rows, _ = against.compare([old], [new])
    return list(rows[rows.side == "both"].mark)


def runs(*times):
    """Return a trace for each time in ms, all of the same solution and workload."""
    return [trace("a", 1, ms) for ms in times]


@pytest.mark.parametrize(
    ("ms", "mark"),
    [(0.94, "faster"), (0.96, ""), (1.049, ""), (1.051, "slower"), (3.0, "slower")],
)
def test_single_runs_are_marked_if_they_differ_by_more_than_five_percent(
    tmp_path, ms, mark
):
    assert marks(tmp_path, [trace("a", 1, 1.0)], [trace("a", 1, ms)]) == [mark]


def test_a_failure_is_marked_when_it_is_new(tmp_path):
    passed = trace("a", 1)
    failed = trace("a", 1, status="RUNTIME_ERROR")
    assert marks(tmp_path, [passed], [failed]) == ["failing"]
    assert marks(tmp_path, [failed], [failed]) == [""]
    assert marks(tmp_path, [failed], [passed]) == [""]


@pytest.mark.parametrize(
    ("before", "after", "mark"),
    [
        ((1.0, 1.2), (1.19, 1.4), ""),
        ((1.0, 1.2), (1.21, 1.4), "slower"),
        ((1.0, 1.001), (1.002, 1.003), "slower"),
        ((1.2, 1.0), (0.99, 0.9), "faster"),
    ],
)
def test_several_runs_are_marked_if_their_ranges_do_not_overlap(
    tmp_path, before, after, mark
):
    assert marks(tmp_path, runs(*before), runs(*after)) == [mark]


@pytest.mark.parametrize(("ms", "mark"), [(1.24, ""), (1.27, "slower")])
def test_a_single_run_has_the_widest_range_of_repeated_cells(tmp_path, ms, mark):
    """Before, T = 7 was run twice, 25% apart, so T = 1, run once on each side, may vary by 25%."""
    before = [trace("a", 7, 1.0), trace("a", 7, 1.25), trace("a", 1, 1.0)]
    assert marks(tmp_path, before, [trace("a", 1, ms)]) == [mark]


def test_one_failure_of_several_is_a_failure(tmp_path):
    after = [trace("a", 1, 1.0), trace("a", 1, status="TIMEOUT")]
    assert marks(tmp_path, [trace("a", 1, 1.0)], after) == ["failing"]


def test_only_the_newest_source_of_a_side_counts(tmp_path):
    before = [
        trace("a", 1, 0.1, sha1="old", day="2026-01-01"),
        trace("a", 1, 1.0, sha1="new", day="2026-01-02"),
    ]
    assert marks(tmp_path, before, [trace("a", 1, 1.01)]) == [""]


def test_another_gpu_is_not_compared(tmp_path):
    after = [trace("a", 1, 9.0, hardware="another")]
    assert marks(tmp_path, [trace("a", 1, 1.0)], after) == []

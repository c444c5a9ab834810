"""What a change made slower or wrong."""

import pytest
from moebench.results import against
from recorded import trace, write


def marks(tmp_path, before, after):
    """Return the marks of what both sides have."""
    old = write(tmp_path / "before.jsonl", before)
    new = write(tmp_path / "after.jsonl", after)
    rows, _ = against.compare([old], [new])
    return list(rows[rows.side == "both"].mark)


@pytest.mark.parametrize(
    ("ms", "mark"), [(0.5, ""), (1.049, ""), (1.051, "slower"), (3.0, "slower")]
)
def test_more_than_five_percent_slower_is_marked(tmp_path, ms, mark):
    assert marks(tmp_path, [trace("a", 1, 1.0)], [trace("a", 1, ms)]) == [mark]


def test_a_failure_is_marked_when_it_is_new(tmp_path):
    passed = trace("a", 1)
    failed = trace("a", 1, status="RUNTIME_ERROR")
    assert marks(tmp_path, [passed], [failed]) == ["failing"]
    assert marks(tmp_path, [failed], [failed]) == [""]
    assert marks(tmp_path, [failed], [passed]) == [""]


def test_the_fastest_of_several_is_the_time(tmp_path):
    several = [trace("a", 1, 1.2), trace("a", 1, 1.0)]
    assert marks(tmp_path, several, [trace("a", 1, 1.04)]) == [""]
    assert marks(tmp_path, several, [trace("a", 1, 1.06)]) == ["slower"]


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

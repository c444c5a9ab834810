"""The one rule: a measurement is current if one of its two hashes is that of the source now."""

import pytest
from moebench.core.provenance import Provenance
from moebench.results import staleness
from recorded import solution

NOW = {"bytes now", "fingerprint now"}


def provenance(sha1, fingerprint):
    return Provenance(
        hardware="a GPU",
        versions={},
        timestamp="2026-01-01",
        source_sha1=sha1,
        source_fingerprint=fingerprint,
    )


@pytest.mark.parametrize(
    ("sha1", "fingerprint", "state"),
    [
        ("bytes now", "fingerprint now", "current"),
        ("bytes before", "fingerprint now", "current"),
        ("bytes now", None, "current"),
        ("bytes before", "fingerprint before", "stale"),
        ("bytes before", None, "stale"),
        (None, None, "unknown"),
    ],
)
def test_one_hash_as_now_is_enough(sha1, fingerprint, state):
    assert staleness.judge(provenance(sha1, fingerprint), NOW) == state


@pytest.mark.parametrize(("complete", "state"), [(True, "stale"), (False, "unknown")])
def test_a_source_that_is_not_there_is_gone_or_not_known(complete, state):
    assert staleness.judge(provenance("a", "b"), (), complete) == state


def test_both_hashes_of_a_solution_count():
    packed = solution("fast")
    hashes = staleness.hashes(packed)
    assert packed.hash() in hashes
    assert len(hashes) == 2


def test_a_record_of_a_solution_that_is_gone_is_stale():
    assert staleness.judge_record(provenance("a", "b"), "no_such_solution") == "stale"


def test_what_is_of_earlier_code_is_not_current():
    recorded = provenance("bytes before", "fingerprint now")
    earlier = recorded.model_copy(update={"earlier_code": "before a barrier"})
    assert staleness.judge(earlier, NOW) == "earlier"


def test_earlier_code_that_has_changed_again_is_stale():
    recorded = provenance("bytes before", "fingerprint before")
    earlier = recorded.model_copy(update={"earlier_code": "before a barrier"})
    assert staleness.judge(earlier, NOW) == "stale"

"""The means that a reader chooses a solution by."""

from statistics import fmean, geometric_mean

import pytest
from moebench.operators.workloads import recorded_bound
from moebench.results import measurements, summary
from recorded import DEFAULT, NAME, RECORDS, everywhere, trace, workload, write


def best(rows, tolerance="relaxed"):
    means = summary.by_solution(rows)
    return summary.best_solution(means, tolerance)


def means_of(rows, solution="fast"):
    """Return the row of a solution."""
    return summary.by_solution(rows).loc[solution]


def test_means_against_statistics_computed_apart(tmp_path):
    fast = {1: 0.5, 7: 1.0, 80: 4.0}  # T -> ms
    slow = {1: 1.0, 7: 2.0, 80: 2.0}
    traces = [trace("fast", tokens, ms, 20.0) for tokens, ms in fast.items()]
    traces += [trace("slow", tokens, ms, 20.0) for tokens, ms in slow.items()]
    file = write(tmp_path / "traces.jsonl", traces)
    rows, _ = measurements.load([file])
    means = means_of(rows)

    times = list(fast.values())
    bounds = [recorded_bound(NAME, workload(tokens), None).ms for tokens in fast]
    over_bound = geometric_mean(times) / geometric_mean(bounds)
    score = fmean(20.0 / ms for ms in times)
    assert means.over_bound == pytest.approx(over_bound)
    assert means.over_fastest == pytest.approx(geometric_mean([1, 1, 2]))
    assert means.score == pytest.approx(score)
    assert means.mean_ms == pytest.approx(fmean(times))


def test_three_of_the_19_workloads_are_not_all(load):
    traces = [trace("fast", tokens, 1.0, 20.0) for tokens in (1, 7, 80)]
    means = means_of(load(*traces))
    assert means.passed_relaxed == 3
    assert means.workloads == 19
    assert not means.complete


def test_stale_rows_are_counted_apart(load):
    current = trace("fast", 7, 1.0, 20.0)
    stale = trace("fast", 1, 0.5, 20.0, sha1="before")
    means = means_of(load(current, stale))
    assert means.passed_relaxed == 1
    assert means.stale_relaxed == 1
    assert means.timed == 1
    assert means.score == 20.0


def test_traces_that_say_no_tolerance_have_their_times(load):
    """So are those of others."""
    theirs = trace("fast", 1, 2.0)
    del theirs.evaluation.environment.libs["tolerance"]
    assert means_of(load(theirs)).mean_ms == 2.0


def test_the_relaxed_tolerance_is_shown_where_it_was_run(load):
    traces = [trace("fast", tokens, tolerance=DEFAULT) for tokens in (1, 7)]
    assert summary.shown_tolerance(load(*traces)) == "default"
    assert summary.shown_tolerance(load(*traces, trace("fast", 1))) == "relaxed"


def test_the_fastest_that_passed_everything_is_to_be_used(load):
    rows = load(*everywhere("fast", 1.0), *everywhere("slow", 2.0))
    assert best(rows) == "fast"
    speedups = summary.speedup_over_others(rows, "fast").to_dict()
    assert speedups == {"slow": pytest.approx(2.0)}


def test_a_single_failure_is_enough_not_to_be_used(load):
    fast = everywhere("fast", 1.0)
    last_tokens = fast[-1].workload.axes["seq_len"]
    fast[-1] = trace("fast", last_tokens, status="INCORRECT_NUMERICAL", matched=0.5)
    rows = load(*fast, *everywhere("slow", 2.0))
    assert best(rows) == "slow"
    assert not means_of(rows).complete


def test_what_to_use_at_another_tolerance_passed_there_too(load):
    fast = everywhere("fast", 1.0)
    slow = everywhere("slow", 2.0)
    passes = everywhere("slow", 2.0, tolerance=DEFAULT)
    rows = load(*fast, *slow, *passes)
    assert best(rows) == "fast"
    assert best(rows, "default") == "slow"
    assert best(rows, "contest") is None


@pytest.mark.parametrize(("slower", "recommended"), [(1.04, "slow"), (1.06, "fast")])
def test_of_solutions_that_are_tied_the_one_with_the_least_mean_is_to_be_used(
    load, slower, recommended
):
    """Slow is as much slower on every workload but one of 1 s, on which it is faster."""
    fast = everywhere("fast", 1.0)
    slow = everywhere("slow", slower)
    last_tokens = RECORDS[-1].axes["seq_len"]
    fast[-1] = trace("fast", last_tokens, 1000.0)
    slow[-1] = trace("slow", last_tokens, 990.0)
    rows = load(*fast, *slow)
    assert best(rows) == recommended


def test_passes_of_two_clocks_are_counted_together(load):
    rows = load(
        trace("fast", 1, 1.0, protocol="once clock=gpu"),
        trace("fast", 1),
        trace("fast", 7),
        trace("fast", 80, status="RUNTIME_ERROR"),
    )
    by_gpu = rows[rows.clock == "gpu"]
    means = summary.by_solution(by_gpu, rows).loc["fast"]
    assert means.passed_relaxed == 2
    assert means.timed == 1


def test_single_calls_recommend_nothing(load):
    protocol = "warmup=1 iterations=1 trials=1"
    rows = load(*everywhere("fast", 1.0, protocol=protocol))
    means = means_of(rows)
    assert means.complete
    assert not means.best
    assert means.mean_ms == 1.0
    assert best(rows) is None

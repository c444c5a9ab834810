"""The GPU's clock: which activity belongs to which call, and that FIB uses it where it should."""

import time

import pytest
import torch
from flashinfer_bench.bench import timing
from flashinfer_bench.bench.evaluators import default
from flashinfer_bench.bench.runner import persistent_runner
from harness.core import paths
from harness.judging import workers
from harness.report.blocks import clocks
from harness.results import comparison
from harness.judging import gpu_clock
from recorded import NAME, trace, write

MARK = "at::cuda::(anonymous namespace)::spin_kernel(long)"
FLUSH = "fill"


def recorded(*calls):
    """Activities of calls, each a list of (start, end) after its mark, 1000 ns apart."""
    found = []
    for at, call in enumerate(calls):
        begin = 1000 * at
        found += [(FLUSH, begin, begin + 5), (MARK, begin + 10, begin + 11)]
        found += [("kernel", begin + start, begin + end) for start, end in call]
        found.append((MARK, begin + 900, begin + 901))
    return found


def test_a_call_lasts_from_its_first_kernel_to_the_end_of_its_last():
    """Not the sum: gaps count, kernels that overlap count once, and the last to begin need not be the last to end."""
    found = recorded([(20, 30), (50, 90)], [(20, 120), (30, 60)])
    assert gpu_clock.spans_ms(reversed(found), 2) == pytest.approx([70e-6, 100e-6])


def test_the_flush_between_calls_is_no_part_of_any():
    """A reader would see every latency 20 us too long."""
    assert gpu_clock.spans_ms(recorded([(20, 30)], [(20, 30)]), 2) == pytest.approx([10e-6, 10e-6])


@pytest.mark.parametrize(("calls", "message"), [(3, "4 marks, want two for each of 3"), (2, "did nothing")])
def test_what_was_not_recorded_is_no_time(calls, message):
    """Without CUPTI, or with a call that launches nothing, there must be an error and no figure."""
    with pytest.raises(RuntimeError, match=message):
        gpu_clock.spans_ms(recorded([(20, 30)], []), calls)


def test_fib_times_by_the_clock_inside_and_by_its_own_after(monkeypatch):
    """The reference, here, and solutions, in a worker, must be timed alike: a speed-up is of one clock."""
    monkeypatch.setattr(workers, "PersistentRunner", lambda log_dir: workers.mock.Mock())
    main = persistent_runner._persistent_worker_main
    with workers.running("logs", "gpu"):
        assert default.time_runnable is gpu_clock.time_runnable
        assert persistent_runner._persistent_worker_main is gpu_clock.worker_main
    assert default.time_runnable is timing.time_runnable and persistent_runner._persistent_worker_main is main
    with workers.running("logs"):
        assert default.time_runnable is timing.time_runnable and persistent_runner._persistent_worker_main is main


def test_a_worker_begins_with_the_clock(monkeypatch):
    seen = []
    monkeypatch.setattr(persistent_runner, "_persistent_worker_main", lambda *_: seen.append(default.time_runnable))
    gpu_clock.worker_main("pipe", "cuda:0", "logs")
    assert seen == [gpu_clock.time_runnable]


def test_its_traces_stay_out_of_the_data_set_and_fill_their_page(tmp_path, monkeypatch):
    """FIB's apply chooses among all traces below traces/; the page has one row per workload, and no time by events."""
    file = paths.trace_file(NAME, clock="gpu")
    assert file.is_relative_to(paths.GPU_CLOCK) and paths.ROOT / "traces" not in file.parents
    monkeypatch.setattr(paths, "GPU_CLOCK", paths.ROOT / "no such folder")
    assert clocks.block(comparison.recorded([NAME], clock="gpu")) == clocks.NOT_RUN
    traces = [trace("one", 7, 0.25, protocol="once clock=gpu"), trace("one", 7, 0.75)]
    text = clocks.block(comparison.build([write(tmp_path / "x.jsonl", traces)], clock="gpu"))
    assert text.count("\n| ") == 2 + 19 + 3 and "| **0.2500** |" in text and "0.75" not in text


@pytest.mark.gpu
def test_host_time_before_the_first_kernel_is_not_counted():
    """FIB's events count a slow host; this clock must not, and must read about what the kernel takes."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def slow_host(a):
        time.sleep(0.005)
        return a @ a

    ms = gpu_clock.time_runnable(slow_host, [a], 2, 10, "cuda:0")
    assert 0.05 < ms < 2 < timing.time_runnable(slow_host, [a], 2, 10, "cuda:0")


@pytest.mark.gpu
def test_a_call_that_launches_nothing_has_no_time():
    with pytest.raises(RuntimeError, match="did nothing"):
        gpu_clock.time_runnable(lambda: None, [], 1, 2, "cuda:0")

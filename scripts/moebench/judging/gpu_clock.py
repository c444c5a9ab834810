"""Time calls by the GPU's clock, which CUPTI reads when a kernel starts and ends: what
`moebench run --clock gpu` puts in the place of FIB 0.1.2's timer (fib.py).

The time of a call is that from the start of its first kernel to the end of its last: the host's
time before the first is not in it, as it is between CUDA events. As on FIB's main branch, L2 is
cold, the inputs are the same tensors in every call, and the median of the calls counts. torch's
profiler brings CUPTI; FlashInfer's timer, which FIB's main branch takes, needs cupti-python 13
beside it and else uses CUDA events.
"""

import statistics
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# The kernel of torch.cuda._sleep, launched before and after each call to tell the calls apart: no
# solution launches it.
MARK = "spin_kernel"


class Activity(NamedTuple):
    """What the device did: a kernel, a copy or a memset. start, end: in ns."""

    name: str
    start: int
    end: int


def time_runnable(
    fn: Callable, args: list, warmup: int, iters: int, device: str
) -> float:
    """Return the median time of a call in ms; stands in for the function of that name in
    `flashinfer_bench.bench.timing`.
    """
    with torch.cuda.device(device), torch.no_grad():
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        cache = torch.empty(2 * l2_bytes, dtype=torch.int8, device=device)

        for _ in range(warmup):
            marked_call(fn, args, cache)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(iters):
                marked_call(fn, args, cache)
            torch.cuda.synchronize()

    return statistics.median(spans_ms(activities(profiler), iters))


def marked_call(fn: Callable, args: list, cache: torch.Tensor) -> None:
    """Call a function with a cold L2, between two marks."""
    cache.zero_()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    fn(*args)
    torch.cuda.synchronize()
    torch.cuda._sleep(1)


def activities(profiler: profile) -> list[Activity]:
    """Return what CUPTI has recorded of the device: torch takes seconds for a tree of it."""
    recorded = []
    for event in profiler.profiler.kineto_results.events():
        if event.device_type() == DeviceType.CUDA:
            recorded.append(Activity(event.name(), event.start_ns(), event.end_ns()))
    return recorded


def spans_ms(recorded: Iterable[Activity], calls: int) -> list[float]:
    """Return the time of each call in ms, from the start of its first activity to the end of its
    last.

    recorded: marks, and the activities between them. Raises RuntimeError where marks are missing,
    as without CUPTI, and for a call that did nothing on the device.
    """
    parts = [[]]
    for activity in sorted(recorded, key=lambda activity: activity.start):
        if MARK in activity.name:
            parts.append([])
        else:
            parts[-1].append(activity)
    if len(parts) != 2 * calls + 1:
        raise RuntimeError(
            f"--clock gpu: CUPTI recorded {len(parts) - 1} marks, "
            f"want two for each of {calls} calls"
        )

    spans = []
    for part in parts[1::2]:
        # the others are before, between and after calls, where L2 is flushed
        if not part:
            raise RuntimeError(
                "--clock gpu: a call did nothing on the device, so it has no time"
            )
        last_end = max(activity.end for activity in part)
        spans.append((last_end - part[0].start) / 1e6)
    return spans

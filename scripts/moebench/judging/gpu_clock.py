"""The GPU's clock: what a call keeps the device busy for, from the activity that CUPTI records; no
host time before it.

As on FIB's main branch, L2 is cold, the inputs are the same tensors in every call, and of the calls
the median counts. torch's profiler brings CUPTI; FlashInfer's timer, which FIB's main branch takes,
needs cupti-python 13 beside it and else counts CUDA events.
"""

import statistics
from collections.abc import Callable, Iterable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# the kernel of torch.cuda._sleep: separates the measured calls, and no solution launches it
MARK = "spin_kernel"
Activity = tuple[str, int, int]  # name, start and end in ns of a kernel, copy or memset


def spans_ms(recorded: Iterable[Activity], calls: int) -> list[float]:
    """Return the ms from the start of each call's first activity to the end of its last.

    Raises RuntimeError where marks are missing, as without CUPTI, and for a call that did nothing
    on the device.
    """
    parts: list[list[Activity]] = [[]]
    for activity in sorted(recorded, key=lambda activity: activity[1]):
        if MARK in activity[0]:
            parts.append([])
        else:
            parts[-1].append(activity)
    if len(parts) != 2 * calls + 1:
        raise RuntimeError(
            f"--clock gpu: CUPTI recorded {len(parts) - 1} marks, "
            f"want two for each of {calls} calls"
        )

    spans = []
    for part in parts[1::2]:  # the others are before, between and after calls, where L2 is flushed
        if not part:
            raise RuntimeError("--clock gpu: a call did nothing on the device, so it has no time")
        first_start = part[0][1]
        last_end = max(end for _, _, end in part)
        spans.append((last_end - first_start) / 1e6)
    return spans


def time_runnable(fn: Callable, args: list, warmup: int, iters: int, device: str) -> float:
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


def activities(profiler: profile) -> list[Activity]:
    """Return what CUPTI has recorded of the device; torch's own tree of it takes seconds."""
    recorded = []
    for event in profiler.profiler.kineto_results.events():
        if event.device_type() == DeviceType.CUDA:
            recorded.append((event.name(), event.start_ns(), event.end_ns()))
    return recorded


def marked_call(fn: Callable, args: list, cache: torch.Tensor) -> None:
    """Call a function with a cold L2, between two marks."""
    cache.zero_()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    fn(*args)
    torch.cuda.synchronize()
    torch.cuda._sleep(1)

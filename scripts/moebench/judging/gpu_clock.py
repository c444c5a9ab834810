"""The GPU's clock: what a call keeps the device busy for, from the activity that CUPTI records; no
host time before it.

As on FIB's main branch, L2 is cold, the inputs are the same tensors in every call, and of the calls
the median counts.
"""

import statistics
from collections.abc import Callable, Iterable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# the kernel of torch.cuda._sleep: separates the measured calls, and no solution launches it
MARK = "spin_kernel"
Activity = tuple[str, int, int]  # name, start and end in ns of a kernel, copy or memset


def spans_ms(activities: Iterable[Activity], calls: int) -> list[float]:
    """Of each call, from the start of its first activity to the end of its last.

    Raises RuntimeError where marks are missing, as without CUPTI, and for a call that did nothing
    on the device.
    """
    parts: list[list[Activity]] = [[]]
    for activity in sorted(activities, key=lambda activity: activity[1]):
        if MARK in activity[0]:
            parts.append([])
        else:
            parts[-1].append(activity)
    if len(parts) != 2 * calls + 1:
        raise RuntimeError(
            f"--clock gpu: CUPTI recorded {len(parts) - 1} marks, want two for each of {calls} calls"
        )
    of_calls = parts[1::2]  # the others are before, between and after calls, where L2 is flushed
    if not all(of_calls):
        raise RuntimeError("--clock gpu: a call did nothing on the device, so it has no time")
    return [(max(end for *_, end in part) - part[0][1]) / 1e6 for part in of_calls]


def time_runnable(fn: Callable, args: list, warmup: int, iters: int, device: str) -> float:
    """Median time of a call in ms; a stand-in for the function of that name in
    `flashinfer_bench.bench.timing`.
    """
    with torch.cuda.device(device), torch.no_grad():
        cache = torch.empty(
            2 * torch.cuda.get_device_properties(device).L2_cache_size,
            dtype=torch.int8,
            device=device,
        )

        def call() -> None:
            cache.zero_()
            torch.cuda._sleep(1)
            torch.cuda.synchronize()
            fn(*args)
            torch.cuda.synchronize()
            torch.cuda._sleep(1)

        for _ in range(warmup):
            call()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(iters):
                call()
            torch.cuda.synchronize()
    events = (
        profiler.profiler.kineto_results.events()
    )  # as recorded: torch's own tree of them takes seconds to build
    on_device = (
        (e.name(), e.start_ns(), e.end_ns()) for e in events if e.device_type() == DeviceType.CUDA
    )
    return statistics.median(spans_ms(on_device, iters))

"""Kernels of a solution's calls through torch.profiler, and apart from them the harness's, by where they were launched.

On a CPU, where Triton's interpreter runs the kernels, each interpreted kernel counts as one, in CPU time.
"""

import json
import tempfile
from collections.abc import Iterable
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
from torch.profiler import ProfilerActivity, profile, record_function
from triton.runtime.interpreter import InterpretedFunction

from harness.core.atomic_file import write_atomically
from harness.packing.stages import plain_name
from harness.profiling.calls import ProfileError, call_repeatedly

CALL = "moe_call"
INTERPRETED = "interpreted "
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCHES = {"cuda_runtime", "cuda_driver"}


@contextmanager
def interpreted_kernels_marked():
    """Put a range named after the kernel around each kernel that Triton's interpreter runs."""
    original = InterpretedFunction.run

    def run(self, *args, grid, warmup, **keywords):
        with record_function(INTERPRETED + self.fn.__name__):
            return original(self, *args, grid=grid, warmup=warmup, **keywords)

    InterpretedFunction.run = run
    try:
        yield
    finally:
        InterpretedFunction.run = original


def record(runnable, args: list, calls: int, device: str, keep: Path | None = None) -> list[dict]:
    """Events of a Chrome trace of `calls` calls after warm-up; kept in the file `keep` if given.

    Raises ProfileError for whatever the solution raises.
    """
    activities = [ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(ProfilerActivity.CUDA)
    marked = interpreted_kernels_marked() if device == "cpu" else nullcontext()
    with marked, profile(activities=activities) as profiler:
        call_repeatedly(runnable, args, calls, device, lambda: record_function(CALL))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        text = path.read_text()
    if keep:
        write_atomically(keep, text)
    return json.loads(text)["traceEvents"]


def timed(events: Iterable[dict], categories: set[str]) -> list[dict]:
    """Events of these categories that have a duration, by their start; all have `args`."""
    found = [{"args": {}} | e for e in events if e.get("ph") == "X" and e.get("cat") in categories]
    return sorted(found, key=lambda e: (e["ts"], -e["dur"]))


def launches(events: list[dict], calls: int, clock: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Launches as in `stages`: of the solution's calls, and outside them. Raises ProfileError if a call is missing."""
    marks = [e for e in timed(events, {"user_annotation"}) if e["name"] == CALL]
    if len(marks) != calls:
        raise ProfileError(f"the profiler recorded {len(marks)} calls, want {calls}")
    rows = device_launches(events) if clock == "device" else cpu_launches(events, marks[0].get("tid"))
    found = pd.DataFrame(rows, columns=["kernel", "ts", "start", "us"]).astype(
        {"ts": float, "start": float, "us": float}
    )
    starts, durations = (np.array([mark[key] for mark in marks], dtype=float) for key in ("ts", "dur"))
    found["call"] = pd.IntervalIndex.from_arrays(starts, starts + durations, closed="both").get_indexer(found.ts)
    inside = found.call >= 0  # a moment that is in none of them has -1
    return found[inside], found[~inside]


def device_launches(events: list[dict]) -> list[tuple[str, float, float, float]]:
    """(kernel, when the host launched it, its start and its microseconds on the device).

    The host's clock separates calls exactly.
    """
    launched = {e["args"]["correlation"]: e["ts"] for e in timed(events, LAUNCHES) if "correlation" in e["args"]}
    return [
        # Where a launch was not recorded: each call waits for its end, so the kernel's own start will do.
        (plain_name(e["name"]), launched.get(e["args"].get("correlation"), e["ts"]), e["ts"], e["dur"])
        for e in timed(events, ON_DEVICE)
    ]


def cpu_launches(events: list[dict], thread) -> list[tuple[str, float, float, float]]:
    """(interpreted kernel or torch operation, start, start, microseconds), without those that another one contains."""
    found, end = [], float("-inf")
    for e in timed(events, {"user_annotation", "cpu_op"}):
        is_kernel = e["name"].startswith(INTERPRETED)
        if (is_kernel or e["cat"] == "cpu_op") and e.get("tid") == thread and e["ts"] >= end:
            found.append((e["name"].removeprefix(INTERPRETED), e["ts"], e["ts"], e["dur"]))
            end = e["ts"] + e["dur"]
    return found

"""Kernels of a solution's calls through torch.profiler: which stage each is of, and how long it takes.

Launches are a DataFrame with one row each: `kernel`, its plain name; `start` and `us` on the device; `call`, its call's
number. What the harness launches between calls is left out. On a CPU an interpreted kernel is one, in CPU time.
"""

import json
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
from torch.profiler import ProfilerActivity, profile, record_function
from triton.runtime.interpreter import InterpretedFunction

from harness.core.errors import CannotRun
from harness.packing.stages import UNASSIGNED, plain_name, stage_of
from harness.profiling.calls import call_repeatedly
from harness.profiling.record import Kernel

CALL = "moe_call"
INTERPRETED = "interpreted "
HOST_OPERATIONS = "torch operations"  # on a CPU: what a solution does between its kernels
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCHES = {"cuda_runtime", "cuda_driver"}


run_interpreted = InterpretedFunction.run


def run_marked(self, *args, **keywords):
    """Triton's interpreter on one kernel, inside a range that is named after it."""
    with record_function(INTERPRETED + self.fn.__name__):
        return run_interpreted(self, *args, **keywords)


def record(runnable, args: list, calls: int, device: str) -> list[dict]:
    """Events of a Chrome trace of `calls` calls. Raises CannotRun for whatever the solution raises."""
    on_cpu = device == "cpu"
    activities = [ProfilerActivity.CPU] if on_cpu else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    marked = mock.patch.object(InterpretedFunction, "run", run_marked) if on_cpu else nullcontext()
    with marked, profile(activities=activities) as profiler:
        call_repeatedly(runnable, args, calls, device, lambda: record_function(CALL))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def timed(events: Iterable[dict], categories: set[str]) -> list[dict]:
    """Events of these categories that have a duration, by their start; all have `args`."""
    found = [{"args": {}} | e for e in events if e.get("ph") == "X" and e.get("cat") in categories]
    return sorted(found, key=lambda e: (e["ts"], -e["dur"]))


def launches(events: list[dict], calls: int, clock: str) -> pd.DataFrame:
    """Those of the solution's calls. Raises CannotRun if a call is missing."""
    marks = [e for e in timed(events, {"user_annotation"}) if e["name"] == CALL]
    if len(marks) != calls:
        raise CannotRun(f"the profiler recorded {len(marks)} calls, want {calls}")
    rows = device_launches(events) if clock == "device" else cpu_launches(events, marks[0].get("tid"))
    floats = dict.fromkeys(("ts", "start", "us"), float)
    found = pd.DataFrame(rows, columns=["kernel", *floats]).astype(floats)
    starts, durations = (np.array([mark[key] for mark in marks], dtype=float) for key in ("ts", "dur"))
    found["call"] = pd.IntervalIndex.from_arrays(starts, starts + durations, closed="both").get_indexer(found.ts)
    return found[found.call >= 0]  # a moment that is in none of them has -1


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


def kernels(launches: pd.DataFrame, table: dict[str, str], calls: int, clock: str) -> list[Kernel]:
    """By stage in the table's order, then what fits no pattern; the longest of each stage first.

    On a CPU torch's own operations (aten::...) that fit no pattern are `HOST_OPERATIONS`, not unassigned.
    """

    def stage(kernel: str) -> str:
        is_torch = clock == "cpu" and kernel.startswith("aten::")
        return stage_of(kernel, table) or (HOST_OPERATIONS if is_torch else UNASSIGNED)

    each = launches.groupby("kernel", sort=False).us.agg(["size", "sum"])
    each = each.sort_values("sum", ascending=False, kind="stable") / calls
    found = [Kernel(stage=stage(k), name=k, launches=count, us=round(us, 4)) for k, count, us in each.itertuples()]
    order = [*table.values(), HOST_OPERATIONS, UNASSIGNED]
    return sorted(found, key=lambda kernel: order.index(kernel.stage))


def busy_us(launches: pd.DataFrame, calls: int) -> float:
    """Microseconds of one call in which at least one of its kernels runs: the union of their intervals; a mean."""
    ordered = launches.sort_values("start")
    end = ordered.start + ordered.us
    covered = end.groupby(ordered.call).cummax().groupby(ordered.call).shift()  # until when those before it run
    return round((end - np.fmax(ordered.start, covered)).clip(lower=0).sum() / calls, 3)


def warnings(kernels: list[Kernel], launches: pd.DataFrame, calls: int) -> list[str]:
    """A line for each kernel without a stage, for each whose launches do not go with the calls, and for none at all."""
    unassigned = [kernel.name for kernel in kernels if kernel.stage == UNASSIGNED]
    lines = [f"{name}: unassigned: no pattern in [stages] of solution.toml fits" for name in unassigned]
    for kernel, call in launches.groupby("kernel", sort=False).call:
        counts = call.value_counts().reindex(range(calls), fill_value=0)
        if counts.min() < counts.max():
            lines.append(f"{kernel}: {counts.min()} to {counts.max()} launches a call, want the same in all of them")
    return lines if kernels else [*lines, "no kernel was seen inside the calls"]

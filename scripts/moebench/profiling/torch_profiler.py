"""Kernels of a solution's calls through torch.profiler: which stage each is of, and how long it
takes.

Launches are a DataFrame with one row each: `kernel`, its plain name; `start` and `us` on the
device; `call`, its call's number. What the harness launches between calls is left out.
"""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from torch.profiler import ProfilerActivity, profile, record_function

from moebench.core.errors import CannotRun
from moebench.profiling.calls import call_repeatedly
from moebench.profiling.record import Kernel
from moebench.profiling.stages import UNASSIGNED, plain_name, stage_of

CALL = "moe_call"
DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCH_CATEGORIES = {"cuda_runtime", "cuda_driver"}


def record(runnable, args: list, calls: int, device: str) -> list[dict]:
    """Return the events of a Chrome trace of `calls` calls.

    Raises CannotRun for whatever the solution raises.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call_repeatedly(runnable, args, calls, device, lambda: record_function(CALL))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def timed(events: Iterable[dict], categories: set[str]) -> list[dict]:
    """Return the events of these categories that have a duration, by start; all have `args`."""
    chosen = []
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in categories:
            chosen.append({"args": {}} | event)
    return sorted(chosen, key=lambda event: (event["ts"], -event["dur"]))


def launches(events: list[dict], calls: int) -> pd.DataFrame:
    """Return the launches of the solution's calls, which the host's clock tells apart.

    Raises CannotRun if a call is missing.
    """
    marks = [event for event in timed(events, {"user_annotation"}) if event["name"] == CALL]
    if len(marks) != calls:
        raise CannotRun(f"the profiler recorded {len(marks)} calls, want {calls}")

    launched = launch_times(events)
    rows = []
    for event in timed(events, DEVICE_CATEGORIES):
        # Where a launch was not recorded the kernel's own start will do, as each call waits for
        # its end.
        launch = launched.get(event["args"].get("correlation"), event["ts"])
        rows.append((plain_name(event["name"]), launch, event["ts"], event["dur"]))
    table = pd.DataFrame(rows, columns=["kernel", "launch", "start", "us"])
    table = table.astype({"launch": float, "start": float, "us": float})

    begins = np.array([mark["ts"] for mark in marks], dtype=float)
    durations = np.array([mark["dur"] for mark in marks], dtype=float)
    intervals = pd.IntervalIndex.from_arrays(begins, begins + durations, closed="both")
    table["call"] = intervals.get_indexer(table.launch)
    return table[table.call >= 0]  # a moment that is in none of them has -1


def launch_times(events: list[dict]) -> dict[int, float]:
    """Return when the host made each launch, by the correlation that its kernel has, too."""
    times = {}
    for event in timed(events, LAUNCH_CATEGORIES):
        if "correlation" in event["args"]:
            times[event["args"]["correlation"]] = event["ts"]
    return times


def kernels(launches: pd.DataFrame, stages: dict[str, str], calls: int) -> list[Kernel]:
    """Return kernels by stage in the order of `stages`, then what fits no pattern.

    The longest of each stage is first. stages: pattern of a kernel's name -> stage.
    """
    totals = launches.groupby("kernel", sort=False).us.agg(["size", "sum"]) / calls
    totals = totals.sort_values("sum", ascending=False, kind="stable")

    each = []
    for name, count, us in totals.itertuples():
        stage = stage_of(name, stages) or UNASSIGNED
        each.append(Kernel(stage=stage, name=name, launches=count, us=round(us, 4)))
    order = [*stages.values(), UNASSIGNED]
    return sorted(each, key=lambda kernel: order.index(kernel.stage))


def busy_us(launches: pd.DataFrame, calls: int) -> float:
    """Return microseconds of one call in which at least one of its kernels runs, a mean.

    That is the union of the kernels' intervals.
    """
    ordered = launches.sort_values("start")
    end = ordered.start + ordered.us
    # Until when the kernels of the same call that started before are running.
    covered = end.groupby(ordered.call).cummax().groupby(ordered.call).shift()
    alone = (end - np.fmax(ordered.start, covered)).clip(lower=0)
    return round(alone.sum() / calls, 3)


def warnings(kernels: list[Kernel], launches: pd.DataFrame, calls: int) -> list[str]:
    """Return a line for everything that makes the figures doubtful.

    That is a kernel without a stage, one whose launches differ from call to call, and no kernel at
    all.
    """
    lines = []
    for kernel in kernels:
        if kernel.stage == UNASSIGNED:
            lines.append(f"{kernel.name}: unassigned: no pattern in [stages] of solution.toml fits")

    for name, call in launches.groupby("kernel", sort=False).call:
        counts = call.value_counts().reindex(range(calls), fill_value=0)
        least = counts.min()
        most = counts.max()
        if least < most:
            lines.append(f"{name}: {least} to {most} launches a call, want the same in all of them")

    if not kernels:
        lines.append("no kernel was seen inside the calls")
    return lines

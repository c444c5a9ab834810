"""Time the kernels of a solution's calls with torch.profiler, for profile.py.

`record` returns the events of a Chrome trace, and `launches` makes a DataFrame of them with a row
for each launch, in microseconds:

    kernel   launched   start    us    call
    route        10.2    14.9   3.1       0

kernel: its plain name. launched: when the host launched it. start, us: when it started on the
device, and how long it ran. call: the number of the call. Kernels that are launched between calls,
to flush L2 for instance, are left out. `kernels`, `busy_us` and `warnings` are computed from it.
"""

import json
import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
from torch.profiler import ProfilerActivity, profile, record_function

from moebench.core.errors import CannotRun
from moebench.profiling.calls import call_repeatedly
from moebench.profiling.record import Kernel
from moebench.profiling.stages import UNASSIGNED, plain_name, stage_of

CALL = "moe_call"  # the name of the events that mark calls
DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCH_CATEGORIES = {"cuda_runtime", "cuda_driver"}


def record(runnable, args: list, calls: int, device: str) -> list[dict]:
    """Return the events of a Chrome trace of so many calls.

    Raises CannotRun for whatever the solution raises.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call_repeatedly(runnable, args, calls, device, lambda: record_function(CALL))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def timed(events: Iterable[dict], categories: set[str]) -> list[dict]:
    """Return the events of these categories that have a duration, sorted by start. An event without
    `args` gets empty ones.
    """
    chosen = []
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in categories:
            chosen.append({"args": {}} | event)
    return sorted(chosen, key=lambda event: (event["ts"], -event["dur"]))


def launches(events: list[dict], calls: int) -> pd.DataFrame:
    """Return the launches in all calls, a row each. A launch belongs to the call during which the
    host made it. Raises CannotRun if there are not `calls` calls.
    """
    # correlation, which a kernel shares with its launch -> when the host made that
    host_times = {}
    for event in timed(events, LAUNCH_CATEGORIES):
        correlation = event["args"].get("correlation")
        if correlation is not None:
            host_times[correlation] = event["ts"]
    rows = []
    for event in timed(events, DEVICE_CATEGORIES):
        start = event["ts"]
        correlation = event["args"].get("correlation")
        # Where no launch was recorded the kernel's start stands in, as each call waits until its
        # kernels have ended.
        launched = host_times.get(correlation, start)
        name = plain_name(event["name"])
        rows.append((name, launched, start, event["dur"]))

    table = pd.DataFrame(rows, columns=["kernel", "launched", "start", "us"])
    table = table.astype({"launched": float, "start": float, "us": float})
    table["call"] = call_times(events, calls).get_indexer(table.launched)
    return table[table.call >= 0]  # a moment that is in no call has -1


def call_times(events: list[dict], calls: int) -> pd.IntervalIndex:
    """Return the time of each call on the host, from start to end.

    Raises CannotRun if there are not `calls` calls.
    """
    intervals = []
    for event in timed(events, {"user_annotation"}):
        if event["name"] == CALL:
            start = float(event["ts"])
            intervals.append((start, start + event["dur"]))

    if len(intervals) != calls:
        raise CannotRun(f"the profiler recorded {len(intervals)} calls, want {calls}")
    return pd.IntervalIndex.from_tuples(intervals, closed="both")


def kernels(launches: pd.DataFrame, stages: dict[str, str], calls: int) -> list[Kernel]:
    """Return the kernels, means over `calls` calls: by stage, in the order of `stages` and then
    those that fit no pattern; in each stage the longest is first.

    stages: [stages] of the solution's manifest.
    """
    times = launches.groupby("kernel", sort=False).us
    totals = times.agg(["size", "sum"]) / calls
    totals = totals.sort_values("sum", ascending=False, kind="stable")

    kernels_of_stage = {stage: [] for stage in [*stages.values(), UNASSIGNED]}
    for name, count, us in totals.itertuples():
        stage = stage_of(name, stages) or UNASSIGNED
        kernel = Kernel(stage=stage, name=name, launches=count, us=round(us, 4))
        kernels_of_stage[stage].append(kernel)
    return list(chain.from_iterable(kernels_of_stage.values()))


def busy_us(launches: pd.DataFrame, calls: int) -> float:
    """Return the microseconds in which at least one kernel of a call runs, a mean over calls.

    That is the union of the kernels' intervals.
    """
    ordered = launches.sort_values("start")
    ordered["end"] = ordered.start + ordered.us
    # the latest end of the kernels of the same call that started before
    ordered["latest"] = ordered.groupby("call").end.cummax()
    covered_until = ordered.groupby("call").latest.shift()

    alone = ordered.end - np.fmax(ordered.start, covered_until)
    return round(alone.clip(lower=0).sum() / calls, 3)


def warnings(kernels: list[Kernel], launches: pd.DataFrame, calls: int) -> list[str]:
    """Return a line for each kernel without a stage, for each whose launches differ from call to
    call, and where there is no kernel at all: figures are doubtful then.
    """
    lines = []
    for kernel in kernels:
        if kernel.stage == UNASSIGNED:
            lines.append(f"{kernel.name}: unassigned: no pattern in [stages] of solution.toml fits")

    counts = pd.crosstab(launches.kernel, launches.call)
    counts = counts.reindex(columns=range(calls), fill_value=0)
    for name in launches.kernel.unique():
        least = counts.loc[name].min()
        most = counts.loc[name].max()
        if least < most:
            lines.append(f"{name}: {least} to {most} launches a call, want the same in all of them")

    if not kernels:
        lines.append("no kernel was seen inside the calls")
    return lines

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
CORRELATION = "args.correlation"  # the number that a kernel shares with its launch
EVENT = ["cat", "name", "ts", "dur", CORRELATION]


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


def timed(events: list[dict]) -> pd.DataFrame:
    """Return a row for each event that has a duration, with the columns of EVENT, sorted by
    start.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    table = pd.json_normalize(complete).reindex(columns=EVENT)
    return table.sort_values(["ts", "dur"], ascending=[True, False])


def launches(events: list[dict], calls: int) -> pd.DataFrame:
    """Return the launches in all calls, a row each. A launch belongs to the call during which the
    host made it. Raises CannotRun if there are not `calls` calls.
    """
    all_events = timed(events)
    host = all_events[all_events.cat.isin(LAUNCH_CATEGORIES)]
    host = host.drop_duplicates(CORRELATION, keep="last")
    host_times = host.set_index(CORRELATION).ts

    device = all_events[all_events.cat.isin(DEVICE_CATEGORIES)]
    launched = device[CORRELATION].map(host_times, na_action="ignore")
    table = pd.DataFrame(
        {
            "kernel": device.name.map(plain_name),
            # Where no launch was recorded the kernel's start stands in, as each call waits until
            # its kernels have ended.
            "launched": launched.fillna(device.ts).astype(float),
            "start": device.ts.astype(float),
            "us": device.dur.astype(float),
        }
    )
    table["call"] = call_times(all_events, calls).get_indexer(table.launched)
    return table[table.call >= 0]  # a moment that is in no call has -1


def call_times(all_events: pd.DataFrame, calls: int) -> pd.IntervalIndex:
    """Return the time of each call on the host, from start to end.

    all_events: of `timed`. Raises CannotRun if there are not `calls` calls.
    """
    is_call = (all_events.cat == "user_annotation") & (all_events.name == CALL)
    recorded = all_events[is_call]
    if len(recorded) != calls:
        raise CannotRun(f"the profiler recorded {len(recorded)} calls, want {calls}")

    starts = recorded.ts.astype(float)
    return pd.IntervalIndex.from_arrays(starts, starts + recorded.dur, closed="both")


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
            lines.append(
                f"{kernel.name}: unassigned: no pattern in [stages] of solution.toml fits"
            )

    counts = pd.crosstab(launches.kernel, launches.call)
    counts = counts.reindex(columns=range(calls), fill_value=0)
    for name in launches.kernel.unique():
        least = counts.loc[name].min()
        most = counts.loc[name].max()
        if least < most:
            lines.append(
                f"{name}: {least} to {most} launches a call, want the same in all of them"
            )

    if not kernels:
        lines.append("no kernel was seen inside the calls")
    return lines

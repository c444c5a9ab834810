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
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCHES = {"cuda_runtime", "cuda_driver"}


def record(runnable, args: list, calls: int, device: str) -> list[dict]:
    """Events of a Chrome trace of `calls` calls. Raises CannotRun for whatever the solution
    raises.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call_repeatedly(runnable, args, calls, device, lambda: record_function(CALL))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def timed(events: Iterable[dict], categories: set[str]) -> list[dict]:
    """Events of these categories that have a duration, by their start; all have `args`."""
    found = [{"args": {}} | e for e in events if e.get("ph") == "X" and e.get("cat") in categories]
    return sorted(found, key=lambda e: (e["ts"], -e["dur"]))


def launches(events: list[dict], calls: int) -> pd.DataFrame:
    """Those of the solution's calls, which the host's clock tells apart. Raises CannotRun if a call
    is missing.
    """
    marks = [e for e in timed(events, {"user_annotation"}) if e["name"] == CALL]
    if len(marks) != calls:
        raise CannotRun(f"the profiler recorded {len(marks)} calls, want {calls}")
    launched = {
        e["args"]["correlation"]: e["ts"]
        for e in timed(events, LAUNCHES)
        if "correlation" in e["args"]
    }
    # Where a launch was not recorded: each call waits for its end, so the kernel's own start will
    # do.
    ours = [
        (e, launched.get(e["args"].get("correlation"), e["ts"])) for e in timed(events, ON_DEVICE)
    ]
    floats = dict.fromkeys(("ts", "start", "us"), float)
    rows = [(plain_name(e["name"]), ts, e["ts"], e["dur"]) for e, ts in ours]
    found = pd.DataFrame(rows, columns=["kernel", *floats]).astype(floats)
    starts, durations = (
        np.array([mark[key] for mark in marks], dtype=float) for key in ("ts", "dur")
    )
    found["call"] = pd.IntervalIndex.from_arrays(
        starts, starts + durations, closed="both"
    ).get_indexer(found.ts)
    return found[found.call >= 0]  # a moment that is in none of them has -1


def kernels(launches: pd.DataFrame, table: dict[str, str], calls: int) -> list[Kernel]:
    """By stage in the table's order, then what fits no pattern; the longest of each stage first."""
    each = launches.groupby("kernel", sort=False).us.agg(["size", "sum"])
    each = each.sort_values("sum", ascending=False, kind="stable") / calls
    stages = {kernel: stage_of(kernel, table) or UNASSIGNED for kernel in each.index}
    found = [
        Kernel(stage=stages[k], name=k, launches=count, us=round(us, 4))
        for k, count, us in each.itertuples()
    ]
    order = [*table.values(), UNASSIGNED]
    return sorted(found, key=lambda kernel: order.index(kernel.stage))


def busy_us(launches: pd.DataFrame, calls: int) -> float:
    """Microseconds of one call in which at least one of its kernels runs: the union of their
    intervals; a mean.
    """
    ordered = launches.sort_values("start")
    end = ordered.start + ordered.us
    covered = (
        end.groupby(ordered.call).cummax().groupby(ordered.call).shift()
    )  # until when those before it run
    return round((end - np.fmax(ordered.start, covered)).clip(lower=0).sum() / calls, 3)


def warnings(kernels: list[Kernel], launches: pd.DataFrame, calls: int) -> list[str]:
    """A line for each kernel without a stage, for each whose launches do not go with the calls, and
    for none at all.
    """
    unassigned = [kernel.name for kernel in kernels if kernel.stage == UNASSIGNED]
    lines = [
        f"{name}: unassigned: no pattern in [stages] of solution.toml fits" for name in unassigned
    ]
    for kernel, call in launches.groupby("kernel", sort=False).call:
        counts = call.value_counts().reindex(range(calls), fill_value=0)
        if counts.min() < counts.max():
            lines.append(
                f"{kernel}: {counts.min()} to {counts.max()} launches a call, want the same in all of them"
            )
    return lines if kernels else [*lines, "no kernel was seen inside the calls"]

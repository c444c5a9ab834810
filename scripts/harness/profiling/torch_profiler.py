"""Kernels of a solution's calls through torch.profiler, and apart from them the harness's, by where they were launched.

On a CPU, where Triton's interpreter runs the kernels, each interpreted kernel counts as one, in CPU time.
"""

import bisect
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import contextmanager, nullcontext
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function
from triton.runtime.interpreter import InterpretedFunction

from harness.packing.stages import plain_name
from harness.profiling.calls import ProfileError, call_repeatedly
from harness.profiling.stages import Seen

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
        path = keep or Path(folder) / "trace.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"]


def timed(events: Iterable[dict], categories: set[str]) -> list[dict]:
    """Events of these categories that have a duration, by their start; all have `args`."""
    found = [{"args": {}} | e for e in events if e.get("ph") == "X" and e.get("cat") in categories]
    return sorted(found, key=lambda e: (e["ts"], -e["dur"]))


def kernels(events: list[dict], calls: int, clock: str) -> tuple[list[Seen], list[Seen]]:
    """What ran for the solution's calls, and what ran outside them. Raises ProfileError unless all calls are there."""
    marks = [e for e in timed(events, {"user_annotation"}) if e["name"] == CALL]
    if len(marks) != calls:
        raise ProfileError(f"the profiler recorded {len(marks)} calls, want {calls}")
    starts = [mark["ts"] for mark in marks]

    def call_at(moment: float) -> int | None:
        at = bisect.bisect_right(starts, moment) - 1
        return at if at >= 0 and moment <= starts[at] + marks[at]["dur"] else None

    launches = device_launches(events) if clock == "device" else cpu_launches(events, marks[0].get("tid"))
    inside, outside = defaultdict(list), defaultdict(list)
    for name, moment, us in launches:
        call = call_at(moment)
        (outside if call is None else inside)[name].append((call, us))

    def seen(name: str, found: list, per_call: tuple[int, ...] | None = None) -> Seen:
        return Seen(name, len(found), sum(us for _, us in found), per_call)

    ours = []
    for name, found in inside.items():
        count = Counter(call for call, _ in found)
        ours.append(seen(name, found, tuple(count[call] for call in range(calls))))
    return ours, [seen(name, found) for name, found in outside.items()]


def device_launches(events: list[dict]) -> list[tuple[str, float, float]]:
    """(kernel, when the host launched it, microseconds on the device); the host's clock separates calls exactly."""
    launched = {e["args"]["correlation"]: e["ts"] for e in timed(events, LAUNCHES) if "correlation" in e["args"]}
    return [
        # Where a launch was not recorded: each call waits for its end, so the kernel's own start will do.
        (plain_name(e["name"]), launched.get(e["args"].get("correlation"), e["ts"]), e["dur"])
        for e in timed(events, ON_DEVICE)
    ]


def cpu_launches(events: list[dict], thread) -> list[tuple[str, float, float]]:
    """(interpreted kernel or torch operation, start, microseconds), leaving out what another of them contains."""
    found, end = [], float("-inf")
    for e in timed(events, {"user_annotation", "cpu_op"}):
        is_kernel = e["name"].startswith(INTERPRETED)
        if (is_kernel or e["cat"] == "cpu_op") and e.get("tid") == thread and e["ts"] >= end:
            found.append((e["name"].removeprefix(INTERPRETED), e["ts"], e["dur"]))
            end = e["ts"] + e["dur"]
    return found

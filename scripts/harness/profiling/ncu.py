"""Hardware counters of every launch through Nsight Compute, one call a point.

ncu runs each kernel alone, several times, with caches emptied before and the clocks left as they are: its times are a
little longer than those of a pipeline whose kernels find each other's results in L2.
"""

import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.packing.stages import UNASSIGNED, plain_name, stage_of
from harness.profiling.calls import SEPARATOR, ProfileError
from harness.profiling.record import Counters, StageTime

TIMEOUT_SECONDS = 900
TIME = "gpu__time_duration.sum"
METRICS = {
    "grid": "launch__grid_size",
    "block": "launch__block_size",
    "compute_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_percent": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
PERCENTS = [field for field in METRICS if field.endswith("_percent")]
MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6}

Launch = tuple[str, Counters]  # kernel's plain name, and what ncu read of it


def command(log: Path, solution: str, geometry: str, points: list[str]) -> list[str]:
    """ncu on a process that calls the solution once on each point, with its CSV into log."""
    tool = ["ncu", "--csv", "--print-kernel-base", "function", "--print-units", "base", "--clock-control", "none"]
    tool += ["--profile-from-start", "off", "--metrics", ",".join([TIME, *METRICS.values()]), "--log-file", str(log)]
    return [*tool, sys.executable, "-m", "harness.profiling.calls", solution, geometry, *points]


def record(solution: str, geometry: str, points: list[str]) -> str:
    """The CSV of `command`. Raises ProfileError when ncu is not installed, fails or takes longer than 15 minutes."""
    if shutil.which("ncu") is None:
        raise ProfileError("ncu is not installed: no such program on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        whole = command(log, solution, geometry, points)
        try:
            done = subprocess.run(whole, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ProfileError(f"ncu: no end after {TIMEOUT_SECONDS} s") from error
        report = log.read_text() if log.exists() else ""
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr + report).splitlines() if line.strip()]
        # ncu's own error says more than what comes after it
        cause = next((line for line in lines if "ERROR" in line or "Error:" in line), (lines or ["no output"])[-1])
        raise ProfileError(f"ncu: exit status {done.returncode}: {cause}")
    return report


def launches(report: str) -> list[Launch]:
    """Every launch in order; one that was not timed is left out.

    report: ncu's CSV, one row per launch and metric, with or without its ==PROF== lines; a value that is no number
    ("n/a") is None. Raises ProfileError where it holds no table, with ncu's own error if there is one.
    """
    rows = list(csv.DictReader(line for line in report.splitlines() if line.startswith('"')))
    if not rows or not {"ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"} <= rows[0].keys():
        cause = next((line for line in report.splitlines() if "ERROR" in line), "no table in its output")
        raise ProfileError(f"ncu: {cause.strip()}")
    found: dict[str, tuple[str, dict[str, float]]] = {}
    for row in rows:
        _, values = found.setdefault(row["ID"], (plain_name(row["Kernel Name"]), {}))
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            continue
        if row["Metric Name"] == TIME:
            if row["Metric Unit"] not in MICROSECONDS:
                raise ProfileError(f"ncu: {TIME}: got the unit {row['Metric Unit']!r}, want one of a time")
            value = round(value * MICROSECONDS[row["Metric Unit"]], 3)
        values[row["Metric Name"]] = value
    return [
        (name, Counters(us=values[TIME], **{field: values.get(metric) for field, metric in METRICS.items()}))
        for name, values in found.values()
        if TIME in values
    ]


def by_point(report: str, count: int) -> list[list[Launch]]:
    """The launches of each of `count` points, without the separators. Raises ProfileError for another number."""
    points: list[list[Launch]] = []
    for launch in launches(report):
        if launch[0] == SEPARATOR:
            points.append([])
        elif points:
            points[-1].append(launch)
    if len(points) != count:
        raise ProfileError(f"ncu: its output has {len(points)} workloads, want {count}")
    return points


def weighted(counters: list[Counters]) -> Counters:
    """Of several launches: their time, and each percentage weighted by the time of the launches that have it."""

    def mean(field: str) -> float | None:
        known = [(launch.us, value) for launch in counters if (value := getattr(launch, field)) is not None]
        us = sum(time for time, _ in known)
        return round(sum(time * value for time, value in known) / us, 2) if us else None

    us = round(sum(launch.us for launch in counters), 3)
    return Counters(us=us, **{field: mean(field) for field in PERCENTS})


def with_counters(
    stages: list[StageTime], of_point: list[Launch], table: dict[str, str]
) -> tuple[list[StageTime], list[str]]:
    """The stages and their kernels with what ncu found, and a line for each stage that only one profiler saw."""
    by_stage: dict[str, list[Counters]] = {}
    by_kernel: dict[str, list[Counters]] = {}
    for name, counters in of_point:
        by_stage.setdefault(stage_of(name, table) or UNASSIGNED, []).append(counters)
        by_kernel.setdefault(name, []).append(counters)
    names = {stage.stage for stage in stages}
    lines = [f"{name}: seen by ncu only" for name in by_stage.keys() - names]
    lines += [f"{name}: not seen by ncu" for name in names - by_stage.keys()]
    found = []
    for stage in stages:
        kernels = [kernel.model_copy(update={"counters": by_kernel.get(kernel.name, [])}) for kernel in stage.kernels]
        counters = weighted(by_stage[stage.stage]) if stage.stage in by_stage else None
        found.append(stage.model_copy(update={"kernels": kernels, "counters": counters}))
    return found, sorted(lines)

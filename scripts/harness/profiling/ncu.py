"""Hardware counters of every launch through Nsight Compute, one call a point.

ncu runs each kernel alone, several times, with caches emptied before and the clocks left as they are: its times are a
little longer than those of a pipeline whose kernels find each other's results in L2.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from harness.packing.stages import UNASSIGNED, plain_name, stage_of
from harness.profiling.calls import ProfileError
from harness.profiling.record import Counters, StageTime
from harness.judging.gpu_clock import MARK

TIMEOUT_SECONDS = 900
METRICS = {
    "us": "gpu__time_duration.sum",
    "grid": "launch__grid_size",
    "block": "launch__block_size",
    "compute_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_percent": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}


def record(solution: str, geometry: str, points: list[str]) -> str:
    """ncu's CSV of a process that calls the solution once on each point.

    Raises ProfileError when ncu is not installed, fails or takes longer than 15 minutes."""
    if shutil.which("ncu") is None:
        raise ProfileError("ncu is not installed: no such program on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = ["ncu", "--csv", "--print-kernel-base", "function", "--print-units", "base"]
        command += ["--clock-control", "none", "--profile-from-start", "off", "--log-file", str(log)]
        command += ["--metrics", ",".join(METRICS.values())]
        command += [sys.executable, "-m", "harness.profiling.calls", solution, geometry, *points]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ProfileError(f"ncu: no end after {TIMEOUT_SECONDS} s") from error
        report = log.read_text() if log.exists() else ""
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr + report).splitlines() if line.strip()]
        # ncu's own error says more than what comes after it
        cause = next((line for line in lines if "ERROR" in line or "Error:" in line), (lines or ["no output"])[-1])
        raise ProfileError(f"ncu: exit status {done.returncode}: {cause}")
    return report


def by_point(report: str, count: int) -> list[pd.DataFrame]:
    """The launches of each of `count` points in order, a row each: `kernel`, its plain name, and METRICS' fields.

    report: ncu's CSV, one row per launch and metric, with or without its ==PROF== lines; a value that is no number
    ("n/a") is NaN, and a launch that was not timed is left out. Raises ProfileError where the report holds no table,
    with ncu's own error if there is one, and for another number of points.
    """
    table = [line for line in report.splitlines() if line.startswith('"')]
    if not table or '"Metric Name"' not in table[0]:
        cause = next((line for line in report.splitlines() if "ERROR" in line), "no table in its output")
        raise ProfileError(f"ncu: {cause.strip()}")
    rows = pd.read_csv(io.StringIO("\n".join(table)), dtype=str).astype({"ID": int})
    for unit in set(rows["Metric Unit"][rows["Metric Name"] == METRICS["us"]]) - {"ns", "nsecond"}:
        raise ProfileError(f"ncu: {METRICS['us']}: got the unit {unit!r}, want nanoseconds")
    rows["value"] = pd.to_numeric(rows["Metric Value"].str.replace(",", ""), errors="coerce")
    launches = rows.pivot(index=["ID", "Kernel Name"], columns="Metric Name", values="value")
    launches = launches.reindex(columns=list(METRICS.values())).set_axis(list(METRICS), axis=1).dropna(subset="us")
    launches["us"] = (launches.us / 1e3).round(3)
    launches["kernel"] = launches.index.get_level_values("Kernel Name").map(plain_name)
    separator = launches.kernel == MARK  # before each point's call
    if separator.sum() != count:
        raise ProfileError(f"ncu: its output has {separator.sum()} workloads, want {count}")
    return [launches[~separator & (separator.cumsum() == at)] for at in range(1, count + 1)]


def weighted(launches: pd.DataFrame) -> Counters:
    """Of several launches: their time, and each percentage weighted by the time of the launches that have it."""
    percents = launches.filter(like="_percent")
    us_known = percents.notna().mul(launches.us, axis=0).sum()
    means = percents.mul(launches.us, axis=0).sum() / us_known
    return Counters(us=round(launches.us.sum(), 3), **means.round(2).dropna())


def with_counters(
    stages: list[StageTime], launches: pd.DataFrame, table: dict[str, str]
) -> tuple[list[StageTime], list[str]]:
    """The stages and their kernels with what ncu found, and a line for each stage that only one profiler saw."""
    launched = launches.kernel.map(lambda name: stage_of(name, table) or UNASSIGNED)
    timed, counted = {stage.stage for stage in stages}, set(launched)
    lines = [f"{name}: seen by ncu only" for name in counted - timed]
    lines += [f"{name}: not seen by ncu" for name in timed - counted]
    found = []
    for stage in stages:
        kernels = []
        for kernel in stage.kernels:
            each = launches.loc[launches.kernel == kernel.name, list(METRICS)]
            counters = [Counters(**launch.dropna()) for _, launch in each.iterrows()]
            kernels.append(kernel.model_copy(update={"counters": counters}))
        whole = weighted(launches[launched == stage.stage]) if stage.stage in counted else None
        found.append(stage.model_copy(update={"kernels": kernels, "counters": whole}))
    return found, sorted(lines)

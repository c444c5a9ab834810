"""Hardware counters of every launch through Nsight Compute, one call a workload.

ncu runs each kernel alone, several times, with caches emptied before and the clocks left as they
are: its times are a little longer than those of a pipeline whose kernels find each other's results
in L2.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from moebench.core.errors import CannotRun
from moebench.judging.gpu_clock import MARK
from moebench.profiling.record import Counters, WorkloadProfile
from moebench.profiling.stages import UNASSIGNED, plain_name, stage_of

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


def record(solution: str, geometry: str, workloads: list[str]) -> str:
    """ncu's CSV of a process that calls the solution once on each workload.

    Raises CannotRun when ncu is not installed, fails or takes longer than 15 minutes."""
    if shutil.which("ncu") is None:
        raise CannotRun("ncu is not installed: no such program on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = ["ncu", "--csv", "--print-kernel-base", "function", "--print-units", "base"]
        command += [
            "--clock-control",
            "none",
            "--profile-from-start",
            "off",
            "--log-file",
            str(log),
        ]
        command += ["--metrics", ",".join(METRICS.values())]
        command += [
            sys.executable,
            "-P",
            "-m",
            "moebench.profiling.calls",
            solution,
            geometry,
            *workloads,
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise CannotRun(f"ncu: no end after {TIMEOUT_SECONDS} s") from error
        report = log.read_text(encoding="utf-8") if log.exists() else ""
    if done.returncode:
        lines = [
            line.strip()
            for line in (done.stdout + done.stderr + report).splitlines()
            if line.strip()
        ]
        # ncu's own error says more than what comes after it
        cause = next(
            (line for line in lines if "ERROR" in line or "Error:" in line),
            (lines or ["no output"])[-1],
        )
        raise CannotRun(f"ncu: exit status {done.returncode}: {cause}")
    return report


def by_workload(report: str, count: int) -> list[pd.DataFrame]:
    """The launches of each of `count` workloads in order, a row each: `kernel`, its plain name, and
    METRICS' fields.

    report: ncu's CSV, one row per launch and metric; "n/a" is NaN, and a launch that was not timed
    is left out. Raises CannotRun where it holds no table, with ncu's own error if there is one, and
    for another number of workloads.
    """
    table = [line for line in report.splitlines() if line.startswith('"')]
    if not table or '"Metric Name"' not in table[0]:
        cause = next(
            (line for line in report.splitlines() if "ERROR" in line), "no table in its output"
        )
        raise CannotRun(f"ncu: {cause.strip()}")
    rows = pd.read_csv(io.StringIO("\n".join(table)), dtype=str).astype({"ID": int})
    for unit in set(rows["Metric Unit"][rows["Metric Name"] == METRICS["us"]]) - {"ns", "nsecond"}:
        raise CannotRun(f"ncu: {METRICS['us']}: got the unit {unit!r}, want nanoseconds")
    rows["value"] = pd.to_numeric(rows["Metric Value"].str.replace(",", ""), errors="coerce")
    launches = rows.pivot(index=["ID", "Kernel Name"], columns="Metric Name", values="value")
    launches = (
        launches.reindex(columns=list(METRICS.values()))
        .set_axis(list(METRICS), axis=1)
        .dropna(subset="us")
    )
    launches["us"] = (launches.us / 1e3).round(3)
    launches["kernel"] = launches.index.get_level_values("Kernel Name").map(plain_name)
    separator = launches.kernel == MARK  # before each workload's call
    if separator.sum() != count:
        raise CannotRun(f"ncu: its output has {separator.sum()} workloads, want {count}")
    return [launches[~separator & (separator.cumsum() == at)] for at in range(1, count + 1)]


def with_counters(
    profile: WorkloadProfile, launches: pd.DataFrame, table: dict[str, str]
) -> WorkloadProfile:
    """The profile with what ncu found of each launch, and a warning for each stage that only one
    profiler saw.
    """
    timed, counted = (
        set(profile.stages),
        {stage_of(name, table) or UNASSIGNED for name in launches.kernel},
    )
    lines = [f"{stage}: seen by ncu only" for stage in counted - timed]
    lines += [f"{stage}: not seen by ncu" for stage in timed - counted]
    kernels = []
    for kernel in profile.kernels:
        each = launches.loc[launches.kernel == kernel.name, list(METRICS)]
        counters = [Counters(**launch.dropna()) for _, launch in each.iterrows()]
        kernels.append(kernel.model_copy(update={"counters": counters}))
    return profile.model_copy(
        update={"kernels": kernels, "warnings": [*profile.warnings, *sorted(lines)]}
    )

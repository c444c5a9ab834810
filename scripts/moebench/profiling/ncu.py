"""Count with Nsight Compute (ncu) what the hardware does in every launch of one call of a workload.

profile.py calls in this order `record`, which returns ncu's CSV, a row for each launch and metric;
`by_workload`, which makes a row of each launch; and `with_counters`.

ncu runs each kernel alone, several times, with caches emptied before and clocks left as they are.
So its times are a little longer than in a pipeline, where a kernel finds the results of the one
before in L2. NVIDIA's module ncu_report could read ncu's report, but lies in a folder of Nsight
Compute that is on no Python's path.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from moebench.core.errors import CannotRun, telling_line
from moebench.judging.gpu_clock import MARK
from moebench.profiling.record import Counters, WorkloadProfile
from moebench.profiling.stages import UNASSIGNED, plain_name, stage_of

TIMEOUT_SECONDS = 900
# Field of record.Counters -> ncu's metric. A launch's time comes in ns.
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
FAULTS = ("ERROR", "Error:")  # in the lines of ncu and of Python that say what is wrong
TIME_UNITS = {"ns", "nsecond"}  # spellings of nanoseconds in several versions of ncu
OPTIONS = [
    *("--csv", "--print-kernel-base", "function", "--print-units", "base"),
    *("--clock-control", "none", "--profile-from-start", "off"),
    *("--metrics", ",".join(METRICS.values())),
]


def record(solution: str, layer_key: str, workloads: list[str]) -> str:
    """Return ncu's CSV of a process, calls.main, that calls a solution once on each workload.

    Raises CannotRun when ncu is not installed, fails or takes longer than 15 minutes.
    """
    if shutil.which("ncu") is None:
        raise CannotRun("ncu is not installed: no such program on the PATH")

    program = [sys.executable, "-P", "-m", "moebench.profiling.calls"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = ["ncu", *OPTIONS, "--log-file", str(log), *program]
        command += [solution, layer_key, *workloads]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise CannotRun(f"ncu: no end after {TIMEOUT_SECONDS} s") from error
        report = log.read_text(encoding="utf-8") if log.exists() else ""

    if done.returncode:
        output = done.stdout + done.stderr + report
        cause = telling_line(output, FAULTS)
        raise CannotRun(f"ncu: exit status {done.returncode}: {cause}")
    return report


def by_workload(report: str, count: int) -> list[pd.DataFrame]:
    """Return a table of launches for each of `count` workloads, in order.

    A row is a launch: the kernel's plain name, and the fields of METRICS, NaN where ncu has "n/a".
    A launch that was not timed is left out. report: ncu's CSV. Raises CannotRun where that holds no
    table, with ncu's error if there is one, and for another number of workloads.
    """
    launches = launches_in(report)
    is_separator = launches.kernel == MARK  # launched before each workload's call
    workloads = is_separator.cumsum()
    if is_separator.sum() != count:
        raise CannotRun(
            f"ncu: its output has {is_separator.sum()} workloads, want {count}"
        )
    launches_of_workloads = []
    for number in range(1, count + 1):
        is_of_workload = ~is_separator & (workloads == number)
        launches_of_workloads.append(launches[is_of_workload])
    return launches_of_workloads


def launches_in(report: str) -> pd.DataFrame:
    """Return the launches in a report, a row each, as in `by_workload`. Raises CannotRun."""
    lines = report.splitlines()
    table = [line for line in lines if line.startswith('"')]
    if not table or '"Metric Name"' not in table[0]:
        errors = [line.strip() for line in lines if "ERROR" in line]
        raise CannotRun(f"ncu: {errors[0] if errors else 'no table in its output'}")

    text = io.StringIO("\n".join(table))
    rows = pd.read_csv(text, dtype=str).astype({"ID": int})

    times = rows[rows["Metric Name"] == METRICS["us"]]
    for unit in set(times["Metric Unit"]) - TIME_UNITS:
        raise CannotRun(
            f"ncu: {METRICS['us']}: got the unit {unit!r}, want nanoseconds"
        )

    plain_numbers = rows["Metric Value"].str.replace(",", "")
    rows["value"] = pd.to_numeric(plain_numbers, errors="coerce")
    launches = rows.pivot(
        index=["ID", "Kernel Name"], columns="Metric Name", values="value"
    )
    launches = launches.reindex(columns=list(METRICS.values()))
    launches.columns = list(METRICS)
    launches = launches.dropna(subset="us")

    launches["us"] = (launches.us / 1e3).round(3)
    names = launches.index.get_level_values("Kernel Name")
    launches["kernel"] = names.map(plain_name)
    return launches


def with_counters(
    profile: WorkloadProfile, launches: pd.DataFrame, stages: dict[str, str]
) -> WorkloadProfile:
    """Return the profile with ncu's counters of each kernel's launches, and with a warning for each
    stage that only one of the two profilers saw.

    stages: [stages] of the solution's manifest.
    """
    kernels = []
    for kernel in profile.kernels:
        kernel_launches = launches[launches.kernel == kernel.name]
        counters = []
        for _, launch in kernel_launches[list(METRICS)].iterrows():
            counters.append(Counters(**launch.dropna()))
        kernels.append(kernel.model_copy(update={"counters": counters}))

    warnings = profile.warnings + differences(profile, launches, stages)
    return profile.model_copy(update={"kernels": kernels, "warnings": warnings})


def differences(
    profile: WorkloadProfile, launches: pd.DataFrame, stages: dict[str, str]
) -> list[str]:
    """Return a line for each stage that only one of the two profilers saw."""
    counted = {stage_of(name, stages) or UNASSIGNED for name in launches.kernel}
    timed = set(profile.stages)
    lines = [f"{stage}: seen by ncu only" for stage in counted - timed]
    lines += [f"{stage}: not seen by ncu" for stage in timed - counted]
    return sorted(lines)

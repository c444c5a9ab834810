"""Hardware counters of a solution's stages through Nsight Compute, one call a point.

ncu runs each kernel alone, several times, with caches emptied before and the clocks left as they are: its times are a
little longer than those of a pipeline whose kernels find each other's results in L2.
"""

import csv
import tempfile
from collections.abc import Iterable
from pathlib import Path

from harness.packing.stages import UNASSIGNED, plain_name, stage_of
from harness.profiling.child_process import run_under
from harness.profiling.profile_record import Counters, StageTime
from harness.profiling.profiled_calls import SEPARATOR, ProfileError

TIME = "gpu__time_duration.sum"
METRICS = {
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6}


def record(solution: str, geometry: str, points: list[str], metrics: Iterable[str] = METRICS.values()) -> str:
    """ncu's CSV of a process that calls the solution once on each point. Raises ProfileError.

    metrics: ncu's names of what to read besides each kernel's time.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        tool = ["ncu", "--csv", "--print-kernel-base", "function", "--print-units", "base", "--clock-control", "none"]
        tool += ["--profile-from-start", "off", "--metrics", ",".join([TIME, *metrics])]
        run_under([*tool, "--log-file", str(log)], [solution, geometry, "1", *points])
        return log.read_text()


def launches(report: str) -> list[tuple[str, dict[str, float]]]:
    """(kernel, metric -> value) of each launch in order; time in microseconds, the rest in percent.

    report: ncu's CSV, one row a launch and metric, with or without its ==PROF== lines; a value that is no number
    ("n/a") is left out. Raises ProfileError where it holds no table, with ncu's own complaint if there is one.
    """
    lines = [line for line in report.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if not rows or not {"ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"} <= rows[0].keys():
        said = next((line for line in report.splitlines() if "ERROR" in line), "no table in its output")
        raise ProfileError(f"ncu: {said.strip()}")
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
            value *= MICROSECONDS[row["Metric Unit"]]
        values[row["Metric Name"]] = value
    return list(found.values())


def by_point(report: str, count: int) -> list[list[tuple[str, dict[str, float]]]]:
    """The launches of each of `count` points, without the separators. Raises ProfileError for another number."""
    points: list[list[tuple[str, dict[str, float]]]] = []
    for launch in launches(report):
        if launch[0] == SEPARATOR:
            points.append([])
        elif points:
            points[-1].append(launch)
    if len(points) != count:
        raise ProfileError(f"ncu: its output has {len(points)} workloads, want {count}")
    return points


def counters(of_point: list[tuple[str, dict[str, float]]], table: dict[str, str]) -> dict[str, Counters]:
    """Stage -> counters of one point, weighed by time over the stage's kernels."""
    by_stage: dict[str, list[dict[str, float]]] = {}
    for name, values in of_point:
        if TIME in values:
            by_stage.setdefault(stage_of(name, table) or UNASSIGNED, []).append(values)

    def weighed(found: list[dict[str, float]], metric: str) -> float | None:
        known = [(values[TIME], values[metric]) for values in found if metric in values]
        us = sum(time for time, _ in known)
        return round(sum(time * value for time, value in known) / us, 2) if us else None

    return {
        stage: Counters(
            us=round(sum(values[TIME] for values in found), 3),
            **{field: weighed(found, metric) for field, metric in METRICS.items()},
        )
        for stage, found in by_stage.items()
    }


def with_counters(stages: list[StageTime], found: dict[str, Counters]) -> tuple[list[StageTime], list[str]]:
    """The stages with what ncu found of them, and a line for each that only one of both profilers saw."""
    names = {stage.stage for stage in stages}
    lines = [f"{name}: seen by ncu only" for name in found.keys() - names]
    lines += [f"{name}: not seen by ncu" for name in names - found.keys()]
    return [stage.model_copy(update={"counters": found.get(stage.stage)}) for stage in stages], sorted(lines)

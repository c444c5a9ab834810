"""Profile solutions on points: from packed solutions to records."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from flashinfer_bench import Solution, Workload
from flashinfer_bench.bench.timing import time_runnable
from flashinfer_bench.compile import Runnable

from harness.core import provenance
from harness.evaluation.calling import first_line, with_outputs
from harness.operators.catalogue import definition, operator
from harness.packing.manifest import read_manifest
from harness.profiling import ncu, torch_profiler
from harness.profiling.calls import WARMUP_RUNS, ProfileError, build, call_repeatedly
from harness.profiling.points import inputs_of, label, stored
from harness.profiling.record import ProfileRecord, WorkloadProfile
from harness.profiling.stages import kernel_times, stage_times, warnings


@dataclass(frozen=True)
class Job:
    """What is profiled, and how. solutions: packed, by their folders' names.

    chrome_trace: torch.profiler's trace is kept there, several with a suffix each. say: takes a line for the user on
    what is being done, or with failed=True on what could not be.
    """

    solutions: dict[str, Solution]
    geometry: str
    points: list[Workload]
    device: str
    calls: int
    counters: bool
    chrome_trace: Path | None
    command: str
    say: Callable[..., None]

    @property
    def clock(self) -> str:
        return "cpu" if self.device == "cpu" else "device"

    def trace_file(self, name: str, point: Workload) -> Path | None:
        path = self.chrome_trace
        if path is None or len(self.solutions) * len(self.points) == 1:
            return path
        return path.with_name(f"{path.stem}-{name}-{point.uuid.replace(':', '-')}{path.suffix}")


def profile_all(job: Job) -> Iterator[ProfileRecord]:
    """The record of each solution that builds and runs on at least one point, as it is made.

    All wall times are taken before the first: a profiler may leave launches slower than it found them.
    """
    runnables = {}
    for name, solution in job.solutions.items():
        try:
            runnables[name] = build(solution, definition(job.geometry))
        except ProfileError as error:
            job.say(str(error), failed=True)
    wall_us = {name: wall_times(name, runnable, job) for name, runnable in runnables.items()}
    for name, runnable in runnables.items():
        if workloads := profile(name, runnable, job, wall_us[name]):
            yield record_of(name, job, workloads)


def wall_times(name: str, runnable: Runnable, job: Job) -> dict[str, float]:
    """Microseconds of a call as FIB times it, by uuid; {} on a CPU. What cannot be timed is left out."""
    full, found = definition(job.geometry), {}
    for point in job.points if job.clock == "device" else []:
        job.say(f"{name}: {label(point)}: wall time")
        try:
            args = with_outputs(full, runnable, inputs_of(point, full, job.device), job.device)
            with torch.no_grad():
                found[point.uuid] = 1e3 * time_runnable(runnable, args, WARMUP_RUNS, job.calls, job.device)
        except Exception:  # whatever it is, profile() meets it again and reports it
            continue
    return found


def profile(name: str, runnable: Runnable, job: Job, wall_us: dict[str, float]) -> list[WorkloadProfile]:
    """Of each point that the solution runs on."""
    table, full, found = read_manifest(name).stages, definition(job.geometry), []
    for point in job.points:
        job.say(f"{name}: {label(point)}")
        try:
            args = with_outputs(full, runnable, inputs_of(point, full, job.device), job.device)
            call_repeatedly(runnable, args, WARMUP_RUNS if job.clock == "device" else 1, job.device)
            events = torch_profiler.record(runnable, args, job.calls, job.device, job.trace_file(name, point))
            ours, others = torch_profiler.launches(events, job.calls, job.clock)
        except ProfileError as error:
            job.say(f"{name}: {label(point)}: {error}", failed=True)
        except RuntimeError as error:  # out of memory, or a broken device
            job.say(f"{name}: {label(point)}: {first_line(error)}", failed=True)
        else:
            found.append(workload_profile(point, job, ours, others, table, wall_us.get(point.uuid)))
    return add_counters(name, job, found, table) if job.counters and found else found


def workload_profile(
    point: Workload, job: Job, ours: pd.DataFrame, others: pd.DataFrame, table: dict[str, str], wall_us: float | None
) -> WorkloadProfile:
    """From launches of the solution and of the harness."""
    stages = stage_times(ours, table, job.clock)
    bound_us = None
    if job.clock == "device":
        bound = operator(job.geometry).bound(point, stored(point, definition(job.geometry)), job.geometry)
        bound_us = round(1e3 * bound.ms, 3)
    return WorkloadProfile(
        uuid=point.uuid,
        T=point.axes["seq_len"],
        calls=job.calls,
        stages=stages,
        other=kernel_times(others),
        wall_us=None if wall_us is None else round(wall_us, 3),
        host_us=None if wall_us is None else round(wall_us - ours.us.sum() / job.calls, 3),
        bound_us=bound_us,
        warnings=warnings(stages, ours, job.calls),
    )


def add_counters(name: str, job: Job, profiles: list[WorkloadProfile], table: dict[str, str]) -> list[WorkloadProfile]:
    """The profiles with ncu's counters; without them, and with a warning in each, when ncu does not work here."""
    job.say(f"{name}: counters under ncu")
    try:
        report = ncu.record(name, job.geometry, [profile.uuid for profile in profiles])
        points = ncu.by_point(report, len(profiles))
    except ProfileError as error:
        job.say(f"{name}: {error}", failed=True)
        return [profile.model_copy(update={"warnings": [*profile.warnings, str(error)]}) for profile in profiles]
    found = []
    for profile, launches in zip(profiles, points, strict=True):
        stages, lines = ncu.with_counters(profile.stages, launches, table)
        found.append(profile.model_copy(update={"stages": stages, "warnings": profile.warnings + lines}))
    return found


def record_of(name: str, job: Job, workloads: list[WorkloadProfile]) -> ProfileRecord:
    protocol = f"torch.profiler, {job.calls} calls" + (", and one call under ncu" if job.counters else "")
    sha1, full = job.solutions[name].hash(), definition(job.geometry).name
    made = provenance.here(job.device, source_sha1=sha1, protocol=protocol, command=job.command)
    return ProfileRecord(solution=name, definition=full, clock=job.clock, provenance=made, workloads=workloads)

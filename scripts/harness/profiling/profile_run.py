"""Profile solutions on points: from packed solutions to records."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch
from flashinfer_bench import Solution
from flashinfer_bench.bench.timing import time_runnable

from harness.core.environment import environment
from harness.operators.catalogue import definition
from harness.packing import eligibility, pack
from harness.packing.stages import stage_table
from harness.profiling import ncu_counters, nsys_backend, torch_backend
from harness.profiling.profile_points import Point, bound_of
from harness.profiling.profile_record import (
    ProfileRecord,
    Seen,
    WorkloadProfile,
    instance_warnings,
    kernel_time,
    stage_times,
    stage_warnings,
)
from harness.profiling.profiled_calls import WARMUP_RUNS, ProfileError, arguments, build, call_repeatedly, first_line

# Index of a point -> kernels inside its calls, and outside.
Look = Callable[[int], tuple[list[Seen], list[Seen]]]


@dataclass(frozen=True)
class Job:
    """How every solution of a run is profiled. chrome_trace: solution and point -> file to keep, or None for none."""

    geometry: str
    device: str
    points: list[Point]
    calls: int
    backend: str
    counters: bool
    chrome_trace: Callable[[str, Point], Path | None]
    command: str

    @property
    def clock(self) -> str:
        return "cpu" if self.device == "cpu" else "device"


def packed(name: str, geometry: str) -> Solution:
    """The solution, if it can run here. Raises ProfileError, or PackingError for a mistake in its folder."""
    stage_table(name)
    solution = pack.pack(name).get(geometry)
    reason = f"does not serve the {geometry} geometry"
    if solution is not None:
        reason = eligibility.why_skipped(solution, eligibility.here())
    if reason:
        raise ProfileError(f"{name}: {reason}")
    return solution


def wall_times(name: str, job: Job) -> dict[str, float]:
    """Microseconds of a call as FIB times it, by uuid; {} on a CPU. What cannot be timed is left out.

    To be called before anything is profiled in this process: a profiler may leave launches slower than it found them.
    """
    found: dict[str, float] = {}
    if job.clock == "cpu":
        return found
    full = definition(job.geometry)
    runnable = build(packed(name, job.geometry), full)
    for point in job.points:
        try:
            args = arguments(runnable, point, full, job.device)
            with torch.no_grad():
                found[point.uuid] = 1e3 * time_runnable(runnable, args, WARMUP_RUNS, job.calls, job.device)
        except Exception:  # whatever it is, profile() meets it again and reports it
            continue
    return found


def profile(
    name: str, job: Job, walls: dict[str, float], say: Callable[[str], None], fail: Callable[[str], None]
) -> ProfileRecord:
    """The record of one solution.

    walls: of `wall_times`. say() hears what is being done, fail() what could not be: a workload, or the counters.
    Raises ProfileError when the solution cannot run here or on none of the points.
    """
    solution, table = packed(name, job.geometry), stage_table(name)
    look = through_nsys(name, job) if job.backend == "nsys" else through_torch(name, solution, job)
    found, failures = [], []
    for index, point in enumerate(job.points):
        say(f"{name}: {point.label}")
        try:
            ours, others = look(index)
        except (ProfileError, RuntimeError) as error:  # RuntimeError: out of memory, or a broken device
            failures.append(f"{name}: {point.label}: {error if isinstance(error, ProfileError) else first_line(error)}")
            continue
        bound_us = 1e3 * bound_of(point, job.geometry).ms if job.clock == "device" else None
        found.append(workload_profile(point, job, ours, others, table, walls.get(point.uuid), bound_us))
    if not found:
        raise ProfileError(failures[0])
    for failure in failures:
        fail(failure)
    if job.counters:
        say(f"{name}: counters under ncu")
        found = add_counters(name, job, found, table, fail)
    hardware, libs = environment(job.device)
    return ProfileRecord(
        solution=name,
        solution_sha1=solution.hash(),
        hardware=hardware,
        clock=job.clock,
        backend="nsys" if job.backend == "nsys" else "torch.profiler",
        libs=libs,
        command=job.command,
        timestamp=datetime.now().isoformat(timespec="seconds"),
        workloads=found,
    )


def through_nsys(name: str, job: Job) -> Look:
    """One process under nsys for all points. Raises ProfileError."""
    report = nsys_backend.record(name, job.geometry, job.calls, [point.uuid for point in job.points])
    return lambda index: nsys_backend.kernels(report, index)


def through_torch(name: str, solution: Solution, job: Job) -> Look:
    """torch.profiler in this process, a point at a time. Raises ProfileError for a solution that does not build."""
    full = definition(job.geometry)
    runnable = build(solution, full)

    def look(index):
        point = job.points[index]
        args = arguments(runnable, point, full, job.device)
        call_repeatedly(runnable, args, WARMUP_RUNS if job.clock == "device" else 1, job.device)
        events = torch_backend.record(runnable, args, job.calls, job.device, job.chrome_trace(name, point))
        return torch_backend.kernels(events, job.calls, job.clock)

    return look


def workload_profile(
    point: Point,
    job: Job,
    ours: list[Seen],
    others: list[Seen],
    table: dict[str, str],
    wall_us: float | None,
    bound_us: float | None,
) -> WorkloadProfile:
    """What was seen, sorted into stages and checked."""
    stages = stage_times(ours, table, job.clock)
    device_us = sum(kernel.total_us for kernel in ours) / job.calls
    return WorkloadProfile(
        uuid=point.uuid,
        T=point.seq_len,
        calls=job.calls,
        stages=stages,
        other=sorted((kernel_time(kernel) for kernel in others), key=lambda kernel: -kernel.total_us),
        wall_us=None if wall_us is None else round(wall_us, 3),
        host_us=None if wall_us is None else round(wall_us - device_us, 3),
        bound_us=None if bound_us is None else round(bound_us, 3),
        warnings=stage_warnings(stages) + instance_warnings(ours, job.calls),
    )


def add_counters(
    name: str, job: Job, profiles: list[WorkloadProfile], table: dict[str, str], fail: Callable[[str], None]
) -> list[WorkloadProfile]:
    """The profiles with ncu's counters; without them, and with a warning in each, when ncu does not work here."""
    try:
        report = ncu_counters.record(name, job.geometry, [profile.uuid for profile in profiles])
        points = ncu_counters.by_point(report, len(profiles))
    except ProfileError as error:
        fail(f"{name}: {error}")
        return [profile.model_copy(update={"warnings": [*profile.warnings, str(error)]}) for profile in profiles]
    found = []
    for profile, launches in zip(profiles, points, strict=True):
        stages, lines = ncu_counters.with_counters(profile.stages, ncu_counters.counters(launches, table))
        found.append(profile.model_copy(update={"stages": stages, "warnings": profile.warnings + lines}))
    return found

"""Profile solutions on points: from packed solutions to records."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from flashinfer_bench import Solution
from flashinfer_bench.bench.timing import time_runnable

from harness.core import provenance
from harness.operators.catalogue import definition
from harness.packing.manifest import read_manifest
from harness.profiling import ncu, torch_profiler
from harness.profiling.calls import WARMUP_RUNS, ProfileError, arguments, build, call_repeatedly, first_line
from harness.profiling.points import Point, bound_of
from harness.profiling.record import ProfileRecord, WorkloadProfile
from harness.profiling.stages import Seen, longest_first, stage_times, warnings

Line = Callable[[str], None]  # takes a line for the user


@dataclass(frozen=True)
class Job:
    """How every solution of a run is profiled. chrome_trace: solution and point -> file to keep, or None for none."""

    geometry: str
    device: str
    points: list[Point]
    calls: int
    counters: bool
    chrome_trace: Callable[[str, Point], Path | None]
    command: str

    @property
    def clock(self) -> str:
        return "cpu" if self.device == "cpu" else "device"


def wall_times(solution: Solution, job: Job) -> dict[str, float]:
    """Microseconds of a call as FIB times it, by uuid; {} on a CPU. What cannot be timed is left out.

    To be called before anything is profiled in this process: a profiler may leave launches slower than it found them.
    Raises ProfileError for a solution that does not build.
    """
    found: dict[str, float] = {}
    if job.clock == "cpu":
        return found
    full = definition(job.geometry)
    runnable = build(solution, full)
    for point in job.points:
        try:
            args = arguments(runnable, point, full, job.device)
            with torch.no_grad():
                found[point.uuid] = 1e3 * time_runnable(runnable, args, WARMUP_RUNS, job.calls, job.device)
        except Exception:  # whatever it is, profile() meets it again and reports it
            continue
    return found


def profile(name: str, solution: Solution, job: Job, walls: dict[str, float], say: Line, fail: Line) -> ProfileRecord:
    """The record of one solution; name: its folder's.

    walls: of `wall_times`. say() gets what is being done, fail() what could not be: a workload, or the counters.
    Raises ProfileError when the solution does not build or runs on none of the points.
    """
    table, full = read_manifest(name).stages, definition(job.geometry)
    runnable = build(solution, full)
    found, failures = [], []
    for point in job.points:
        say(f"{name}: {point.label}")
        try:
            args = arguments(runnable, point, full, job.device)
            call_repeatedly(runnable, args, WARMUP_RUNS if job.clock == "device" else 1, job.device)
            events = torch_profiler.record(runnable, args, job.calls, job.device, job.chrome_trace(name, point))
            ours, others = torch_profiler.kernels(events, job.calls, job.clock)
        except (ProfileError, RuntimeError) as error:  # RuntimeError: out of memory, or a broken device
            failures.append(f"{name}: {point.label}: {error if isinstance(error, ProfileError) else first_line(error)}")
            continue
        found.append(workload_profile(point, job, ours, others, table, walls.get(point.uuid)))
    if not found:
        raise ProfileError(failures[0])
    for failure in failures:
        fail(failure)
    if job.counters:
        say(f"{name}: counters under ncu")
        found = add_counters(name, job, found, table, fail)
    protocol = f"torch.profiler, {job.calls} calls" + (", and one call under ncu" if job.counters else "")
    where = provenance.here(job.device, source_sha1=solution.hash(), protocol=protocol, command=job.command)
    return ProfileRecord(solution=name, definition=full.name, clock=job.clock, provenance=where, workloads=found)


def workload_profile(
    point: Point, job: Job, ours: list[Seen], others: list[Seen], table: dict[str, str], wall_us: float | None
) -> WorkloadProfile:
    """What was seen, sorted into stages and checked."""
    stages = stage_times(ours, table, job.clock)
    device_us = sum(kernel.total_us for kernel in ours) / job.calls
    return WorkloadProfile(
        uuid=point.uuid,
        T=point.seq_len,
        calls=job.calls,
        stages=stages,
        other=longest_first(others),
        wall_us=None if wall_us is None else round(wall_us, 3),
        host_us=None if wall_us is None else round(wall_us - device_us, 3),
        bound_us=round(1e3 * bound_of(point, job.geometry).ms, 3) if job.clock == "device" else None,
        warnings=warnings(stages, ours, job.calls),
    )


def add_counters(
    name: str, job: Job, profiles: list[WorkloadProfile], table: dict[str, str], fail: Line
) -> list[WorkloadProfile]:
    """The profiles with ncu's counters; without them, and with a warning in each, when ncu does not work here."""
    try:
        report = ncu.record(name, job.geometry, [profile.uuid for profile in profiles])
        points = ncu.by_point(report, len(profiles))
    except ProfileError as error:
        fail(f"{name}: {error}")
        return [profile.model_copy(update={"warnings": [*profile.warnings, str(error)]}) for profile in profiles]
    found = []
    for profile, launches in zip(profiles, points, strict=True):
        stages, lines = ncu.with_counters(profile.stages, launches, table)
        found.append(profile.model_copy(update={"stages": stages, "warnings": profile.warnings + lines}))
    return found


def profile_all(solutions: dict[str, Solution], job: Job, say: Line, fail: Line) -> Iterator[ProfileRecord]:
    """The record of each solution, by its folder's name, as it is made; all wall times are taken before the first.

    say() gets what is being done, fail() what went wrong; a solution without a record is among the latter.
    """
    walls = {}
    for name, solution in solutions.items():
        try:
            say(f"{name}: wall times")
            walls[name] = wall_times(solution, job)
        except ProfileError as error:
            fail(str(error))
    for name, wall_us in walls.items():
        try:
            yield profile(name, solutions[name], job, wall_us, say, fail)
        except ProfileError as error:
            fail(str(error))

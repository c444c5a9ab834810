"""Profile solutions on points: from packed solutions to records."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from flashinfer_bench import Definition, Solution, Workload
from flashinfer_bench.bench.timing import time_runnable
from flashinfer_bench.compile import Runnable

from harness.core import provenance
from harness.judging.calling import first_line, with_outputs
from harness.operators.catalogue import definition
from harness.operators.workloads import bound_of
from harness.packing.manifest import read_manifest
from harness.profiling import ncu, torch_profiler
from harness.profiling.calls import WARMUP_RUNS, ProfileError, build, call_repeatedly
from harness.profiling.points import inputs_of, label, stored
from harness.profiling.record import ProfileRecord, WorkloadProfile
from harness.profiling.stages import busy_us, kernel_times, stage_times, warnings


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

    @property
    def full(self) -> Definition:
        return definition(self.geometry)

    def arguments(self, runnable: Runnable, point: Workload) -> list:
        return with_outputs(self.full, runnable, inputs_of(point, self.full, self.device), self.device)

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
            runnables[name] = build(solution, job.full)
        except ProfileError as error:
            job.say(str(error), failed=True)
    wall_us = {name: wall_times(name, runnable, job) for name, runnable in runnables.items()}
    protocol = f"torch.profiler, {job.calls} calls" + (", and one call under ncu" if job.counters else "")
    known = {"definition": job.full.name, "clock": job.clock}
    for name, runnable in runnables.items():
        found = []
        for point in job.points:
            at = f"{name}: {label(point)}"
            job.say(at)
            try:
                found.append(profile(name, runnable, job, point, wall_us[name].get(point.uuid)))
            except ProfileError as error:
                job.say(f"{at}: {error}", failed=True)
            except RuntimeError as error:  # out of memory, or a broken device
                job.say(f"{at}: {first_line(error)}", failed=True)
        if found:
            workloads = add_counters(name, job, found) if job.counters else found
            sha1 = job.solutions[name].hash()
            made = provenance.here(job.device, source_sha1=sha1, protocol=protocol, command=job.command)
            yield ProfileRecord(solution=name, provenance=made, workloads=workloads, **known)


def wall_times(name: str, runnable: Runnable, job: Job) -> dict[str, float]:
    """Microseconds of a call as FIB times it, by uuid; {} on a CPU. What cannot be timed is left out."""
    found = {}
    for point in job.points if job.clock == "device" else []:
        job.say(f"{name}: {label(point)}: wall time")
        try:
            args = job.arguments(runnable, point)
            with torch.no_grad():
                found[point.uuid] = 1e3 * time_runnable(runnable, args, WARMUP_RUNS, job.calls, job.device)
        except Exception:  # whatever it is, profile() meets it again and reports it
            continue
    return found


def profile(name: str, runnable: Runnable, job: Job, point: Workload, wall_us: float | None) -> WorkloadProfile:
    """Without counters. Raises ProfileError for whatever the solution raises."""
    args, on_device = job.arguments(runnable, point), job.clock == "device"
    call_repeatedly(runnable, args, WARMUP_RUNS if on_device else 1, job.device)
    events = torch_profiler.record(runnable, args, job.calls, job.device, job.trace_file(name, point))
    ours, others = torch_profiler.launches(events, job.calls, job.clock)
    stages = stage_times(ours, read_manifest(name).stages, job.clock)
    busy = busy_us(ours, job.calls)
    bound = bound_of(point, stored(point, job.full), job.geometry) if on_device else None
    return WorkloadProfile(
        uuid=point.uuid,
        T=point.axes["seq_len"],
        calls=job.calls,
        stages=stages,
        other=kernel_times(others),
        wall_us=None if wall_us is None else round(wall_us, 3),
        busy_us=busy,
        host_us=None if wall_us is None else round(wall_us - busy, 3),
        bound_us=round(1e3 * bound.ms, 3) if bound else None,
        warnings=warnings(stages, ours, job.calls),
    )


def add_counters(name: str, job: Job, profiles: list[WorkloadProfile]) -> list[WorkloadProfile]:
    """The profiles with ncu's counters; without them, and with a warning in each, when ncu does not work here."""
    job.say(f"{name}: counters under ncu")
    try:
        report = ncu.record(name, job.geometry, [profile.uuid for profile in profiles])
        points = ncu.by_point(report, len(profiles))
    except ProfileError as error:
        job.say(f"{name}: {error}", failed=True)
        return [profile.model_copy(update={"warnings": [*profile.warnings, str(error)]}) for profile in profiles]
    found, table = [], read_manifest(name).stages
    for profile, launches in zip(profiles, points, strict=True):
        stages, lines = ncu.with_counters(profile.stages, launches, table)
        found.append(profile.model_copy(update={"stages": stages, "warnings": profile.warnings + lines}))
    return found

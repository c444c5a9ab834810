"""Profile solutions on workloads: from packed solutions to records."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from flashinfer_bench import Definition, Solution, Workload
from flashinfer_bench.compile import Runnable

from moebench.core import provenance
from moebench.core.errors import CannotRun
from moebench.judging.calling import first_line
from moebench.judging.fib import time_runnable
from moebench.operators.catalogue import definition, definition_name
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.operators.workloads import recorded_bound
from moebench.packing.fingerprint import source_hashes
from moebench.packing.manifest import read_manifest
from moebench.profiling import ncu, torch_profiler
from moebench.profiling.calls import WARMUP_RUNS, arguments, build, call_repeatedly
from moebench.profiling.record import ProfileRecord, WorkloadProfile


@dataclass(frozen=True)
class Job:
    """What is profiled, and how.

    solutions: packed, by their folders' names. workloads: as `calls.choose` returns them. counters:
    whether ncu counts, too. say: takes a line for the user on what is being done, or with
    failed=True on what could not be.
    """

    solutions: dict[str, Solution]
    layer_key: str
    workloads: dict[str, Workload]
    device: str
    calls: int
    counters: bool
    command: str
    say: Callable[..., None]

    @property
    def definition(self) -> Definition:
        return definition(self.layer_key)

    @property
    def protocol(self) -> str:
        """How times are taken, as the record says it."""
        ending = ", and one call under ncu" if self.counters else ""
        return f"torch.profiler, {self.calls} calls{ending}"


def profile_all(job: Job) -> Iterator[ProfileRecord]:
    """Yield the record of each solution that builds and runs on at least one workload.

    All wall times are taken before the first: a profiler may leave launches slower than it found
    them.
    """
    runnables = {}
    for name, packed in job.solutions.items():
        try:
            runnables[name] = build(packed, job.definition)
        except CannotRun as error:
            job.say(str(error), failed=True)

    wall_us = {}
    for name, runnable in runnables.items():
        wall_us[name] = wall_times(name, runnable, job)

    for name, runnable in runnables.items():
        profiles = workload_profiles(name, runnable, job, wall_us[name])
        if profiles:
            profiles = with_counters(name, job, profiles)
            yield record_of(name, job, profiles)


def record_of(name: str, job: Job, profiles: list[WorkloadProfile]) -> ProfileRecord:
    """Return a solution's record, with where its figures come from."""
    source = source_hashes(job.solutions[name])
    measured_by = provenance.here(job.device, **source, protocol=job.protocol, command=job.command)
    return ProfileRecord(
        solution=name,
        definition=job.definition.name,
        provenance=measured_by,
        workloads=profiles,
        ceilings=CEILINGS[MEASURED_ON],
    )


def wall_times(name: str, runnable: Runnable, job: Job) -> dict[str, float]:
    """Return microseconds of a call as FIB times it, by uuid. What cannot be timed is left out."""
    times = {}
    for uuid, workload in job.workloads.items():
        job.say(f"{name}: wall time")
        # Whatever it raises, the profile of the same workload meets it again and reports it.
        with suppress(Exception), torch.no_grad():
            args = arguments(runnable, workload, job.definition, job.device)
            ms = time_runnable(runnable, args, WARMUP_RUNS, job.calls, job.device)
            times[uuid] = round(1e3 * ms, 3)
    return times


def workload_profiles(
    name: str, runnable: Runnable, job: Job, wall_us: dict[str, float]
) -> list[WorkloadProfile]:
    """Return the profiles of the workloads that the solution runs on; the others are said."""
    profiles = []
    for uuid, workload in job.workloads.items():
        line = f"{name}: T={workload.axes['seq_len']}"
        job.say(line)
        try:
            profiles.append(profile(name, runnable, job, uuid, wall_us.get(uuid)))
        except CannotRun as error:
            job.say(f"{line}: {error}", failed=True)
        except RuntimeError as error:  # out of memory, or a broken device
            job.say(f"{line}: {first_line(error)}", failed=True)
    return profiles


def profile(
    name: str, runnable: Runnable, job: Job, uuid: str, wall_us: float | None
) -> WorkloadProfile:
    """Return a workload's profile without counters.

    Raises CannotRun for whatever the solution raises.
    """
    workload = job.workloads[uuid]
    args = arguments(runnable, workload, job.definition, job.device)
    call_repeatedly(runnable, args, WARMUP_RUNS, job.device)

    events = torch_profiler.record(runnable, args, job.calls, job.device)
    launches = torch_profiler.launches(events, job.calls)
    kernels = torch_profiler.kernels(launches, read_manifest(name).stages, job.calls)
    bound = recorded_bound(definition_name(job.layer_key), workload)
    return WorkloadProfile(
        uuid=uuid,
        T=workload.axes["seq_len"],
        calls=job.calls,
        kernels=kernels,
        wall_us=wall_us,
        busy_us=torch_profiler.busy_us(launches, job.calls),
        bound_us=round(1e3 * bound.ms, 3) if bound else None,
        warnings=torch_profiler.warnings(kernels, launches, job.calls),
    )


def with_counters(name: str, job: Job, profiles: list[WorkloadProfile]) -> list[WorkloadProfile]:
    """Return the profiles with ncu's counters if they are wanted.

    Where ncu does not work they come without, and with a warning in each.
    """
    if not job.counters:
        return profiles

    job.say(f"{name}: counters under ncu")
    uuids = [profile.uuid for profile in profiles]
    try:
        report = ncu.record(name, job.layer_key, uuids)
        launches = ncu.by_workload(report, len(uuids))
    except CannotRun as error:
        job.say(f"{name}: {error}", failed=True)
        for profile in profiles:
            profile.warnings.append(str(error))
        return profiles

    stages = read_manifest(name).stages
    pairs = zip(profiles, launches, strict=True)
    return [ncu.with_counters(profile, counted, stages) for profile, counted in pairs]

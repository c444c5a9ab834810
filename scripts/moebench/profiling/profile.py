"""Profile solutions on workloads: from packed solutions to records."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from flashinfer_bench import Solution, Workload
from flashinfer_bench.compile import Runnable

from moebench.core import provenance
from moebench.core.errors import CannotRun
from moebench.judging.calling import first_line
from moebench.judging.fib import time_runnable
from moebench.operators.catalogue import definition, definition_name
from moebench.operators.workloads import recorded_bound
from moebench.packing.fingerprint import source_of
from moebench.packing.manifest import read_manifest
from moebench.profiling import ncu, torch_profiler
from moebench.profiling.calls import WARMUP_RUNS, arguments, build, call_repeatedly
from moebench.profiling.record import ProfileRecord, WorkloadProfile


@dataclass(frozen=True)
class Job:
    """What is profiled, and how. solutions: packed, by their folders' names. workloads: as of
    `calls.choose`.

    say: takes a line for the user on what is being done, or with failed=True on what could not be.
    """

    solutions: dict[str, Solution]
    geometry: str
    workloads: dict[str, Workload]
    device: str
    calls: int
    counters: bool
    command: str
    say: Callable[..., None]


def profile_all(job: Job) -> Iterator[ProfileRecord]:
    """The record of each solution that builds and runs on at least one workload, as it is made.

    All wall times are taken before the first: a profiler may leave launches slower than it found
    them.
    """
    full, runnables = definition(job.geometry), {}
    for name, packed in job.solutions.items():
        try:
            runnables[name] = build(packed, full)
        except CannotRun as error:
            job.say(str(error), failed=True)
    wall_us = {name: wall_times(name, runnable, job) for name, runnable in runnables.items()}
    protocol = f"torch.profiler, {job.calls} calls" + (
        ", and one call under ncu" if job.counters else ""
    )
    for name, runnable in runnables.items():
        found = []
        for uuid, workload in job.workloads.items():
            at = f"{name}: T={workload.axes['seq_len']}"
            job.say(at)
            try:
                found.append(profile(name, runnable, job, uuid, wall_us[name].get(uuid)))
            except (CannotRun, RuntimeError) as error:  # or out of memory, or a broken device
                job.say(
                    f"{at}: {error if isinstance(error, CannotRun) else first_line(error)}",
                    failed=True,
                )
        if found:
            known = source_of(job.solutions[name]) | {"protocol": protocol, "command": job.command}
            made = {"definition": full.name, "provenance": provenance.here(job.device, **known)}
            yield ProfileRecord(solution=name, workloads=with_counters(name, job, found), **made)


def wall_times(name: str, runnable: Runnable, job: Job) -> dict[str, float]:
    """Microseconds of a call as FIB times it, by uuid. What cannot be timed is left out."""
    found = {}
    for uuid, workload in job.workloads.items():
        job.say(f"{name}: wall time")
        with (
            suppress(Exception),
            torch.no_grad(),
        ):  # whatever it is, profile() meets it again and reports it
            args = arguments(runnable, workload, definition(job.geometry), job.device)
            ms = time_runnable(runnable, args, WARMUP_RUNS, job.calls, job.device)
            found[uuid] = round(1e3 * ms, 3)
    return found


def profile(
    name: str, runnable: Runnable, job: Job, uuid: str, wall_us: float | None
) -> WorkloadProfile:
    """Without counters. Raises CannotRun for whatever the solution raises."""
    workload = job.workloads[uuid]
    args = arguments(runnable, workload, definition(job.geometry), job.device)
    call_repeatedly(runnable, args, WARMUP_RUNS, job.device)
    events = torch_profiler.record(runnable, args, job.calls, job.device)
    launches = torch_profiler.launches(events, job.calls)
    kernels = torch_profiler.kernels(launches, read_manifest(name).stages, job.calls)
    bound = recorded_bound(definition_name(job.geometry), workload)
    of = {
        "uuid": uuid,
        "T": workload.axes["seq_len"],
        "calls": job.calls,
        "kernels": kernels,
        "wall_us": wall_us,
    }
    of |= {
        "busy_us": torch_profiler.busy_us(launches, job.calls),
        "bound_us": bound and round(1e3 * bound.ms, 3),
    }
    return WorkloadProfile(**of, warnings=torch_profiler.warnings(kernels, launches, job.calls))


def with_counters(name: str, job: Job, found: list[WorkloadProfile]) -> list[WorkloadProfile]:
    """With ncu's counters if they are wanted; without them, and with a warning in each, when ncu
    does not work here.
    """
    if not job.counters:
        return found
    job.say(f"{name}: counters under ncu")
    try:
        counted = ncu.by_workload(
            ncu.record(name, job.geometry, [each.uuid for each in found]), len(found)
        )
    except CannotRun as error:
        job.say(f"{name}: {error}", failed=True)
        return [
            each.model_copy(update={"warnings": [*each.warnings, str(error)]}) for each in found
        ]
    return [
        ncu.with_counters(*pair, read_manifest(name).stages)
        for pair in zip(found, counted, strict=True)
    ]

"""Profile solutions on workloads: `moebench profile` calls `profile_all` with a Job, and gets a
ProfileRecord of each solution.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from flashinfer_bench import Definition, Workload
from flashinfer_bench.compile import Runnable

from moebench.core import provenance
from moebench.core.errors import CannotRun, first_line
from moebench.judging.building import Solutions
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

    solutions: packed, by their folders' names. workloads: by uuid, as `choose_workloads` of
    calls.py returns them. device: as torch calls it. calls: how many are profiled. counters:
    whether ncu counts, too. command: the text that repeats the profile. say: takes a line for the
    user on what is done now, or with failed=True on what could not be done.
    """

    solutions: Solutions
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
        """Return how times are taken, for the record."""
        ending = ", and one call under ncu" if self.counters else ""
        return f"torch.profiler, {self.calls} calls{ending}"


def profile_all(job: Job) -> Iterator[ProfileRecord]:
    """Yield the record of each solution that builds and runs on at least one workload.

    The wall times of all are taken first, as launches may be slower once a profiler has run.
    """
    built = []
    for name, packed in job.solutions.items():
        try:
            built.append(BuiltSolution(name, build(packed, job.definition), job))
        except CannotRun as error:
            job.say(str(error), failed=True)

    for solution in built:
        solution.time_calls()
    for solution in built:
        profiles = solution.profiles()
        if profiles:
            yield solution.record(solution.with_counters(profiles))


@dataclass(frozen=True)
class BuiltSolution:
    """A solution that can be called. wall_us: uuid -> microseconds of a call as FIB times it."""

    name: str
    runnable: Runnable
    job: Job
    wall_us: dict[str, float] = field(default_factory=dict)

    @property
    def stages(self) -> dict[str, str]:
        """Return the table [stages] of the solution's manifest."""
        return read_manifest(self.name).stages

    def time_calls(self) -> None:
        """Take the wall times. A workload that cannot be timed has none."""
        job = self.job
        for uuid, workload in job.workloads.items():
            job.say(f"{self.name}: wall time")
            # Whatever is raised, profiling the same workload raises it again and tells the user.
            with suppress(Exception), torch.no_grad():
                args = arguments(self.runnable, workload, job.definition, job.device)
                ms = time_runnable(
                    self.runnable, args, WARMUP_RUNS, job.calls, job.device
                )
                self.wall_us[uuid] = round(1e3 * ms, 3)

    def profiles(self) -> list[WorkloadProfile]:
        """Return a profile for each workload on which the solution runs, and tell the user of the
        others.
        """
        profiles = []
        for uuid, workload in self.job.workloads.items():
            line = f"{self.name}: T={workload.axes['seq_len']}"
            self.job.say(line)
            try:
                profiles.append(self.profile(uuid, workload))
            except CannotRun as error:
                self.job.say(f"{line}: {error}", failed=True)
            except RuntimeError as error:  # out of memory, or a broken device
                self.job.say(f"{line}: {first_line(error)}", failed=True)
        return profiles

    def profile(self, uuid: str, workload: Workload) -> WorkloadProfile:
        """Return a workload's profile without counters.

        Raises CannotRun for whatever the solution raises.
        """
        job = self.job
        args = arguments(self.runnable, workload, job.definition, job.device)
        call_repeatedly(self.runnable, args, WARMUP_RUNS, job.device)

        events = torch_profiler.record(self.runnable, args, job.calls, job.device)
        launches = torch_profiler.launches(events, job.calls)
        kernels = torch_profiler.kernels(launches, self.stages, job.calls)
        bound = recorded_bound(definition_name(job.layer_key), workload)
        return WorkloadProfile(
            uuid=uuid,
            T=workload.axes["seq_len"],
            calls=job.calls,
            kernels=kernels,
            wall_us=self.wall_us.get(uuid),
            busy_us=torch_profiler.busy_us(launches, job.calls),
            bound_us=round(1e3 * bound.ms, 3) if bound else None,
            warnings=torch_profiler.warnings(kernels, launches, job.calls),
        )

    def with_counters(self, profiles: list[WorkloadProfile]) -> list[WorkloadProfile]:
        """Return the profiles with ncu's counters if the job wants them.

        Where ncu does not work they are returned without, and with a warning in each.
        """
        if not self.job.counters:
            return profiles

        self.job.say(f"{self.name}: counters under ncu")
        uuids = [profile.uuid for profile in profiles]
        try:
            report = ncu.record(self.name, self.job.layer_key, uuids)
            launches = ncu.by_workload(report, len(uuids))
        except CannotRun as error:
            self.job.say(f"{self.name}: {error}", failed=True)
            for profile in profiles:
                profile.warnings.append(str(error))
            return profiles

        counted = []
        for profile, workload_launches in zip(profiles, launches, strict=True):
            counted.append(ncu.with_counters(profile, workload_launches, self.stages))
        return counted

    def record(self, profiles: list[WorkloadProfile]) -> ProfileRecord:
        """Return the record of these profiles."""
        job = self.job
        source = source_hashes(job.solutions[self.name])
        measured_by = provenance.measured_here(
            job.device, **source, protocol=job.protocol, command=job.command
        )
        return ProfileRecord(
            solution=self.name,
            definition=job.definition.name,
            provenance=measured_by,
            workloads=profiles,
            ceilings=CEILINGS[MEASURED_ON],
        )

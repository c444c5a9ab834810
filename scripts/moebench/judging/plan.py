"""What a run does: a Plan, every task of which is evaluated, recorded and shown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flashinfer_bench import (
    BenchmarkConfig,
    Definition,
    EvaluationStatus,
    Solution,
    Trace,
    Workload,
)

from moebench.core import paths
from moebench.judging import fib
from moebench.judging.device import Device
from moebench.judging.tolerances import Tolerance


@dataclass(frozen=True)
class Task:
    """A workload, and the solutions to evaluate on it in one go. definition: its name.

    run: which of the plan's runs this is a part of, from 1.
    """

    definition: str
    label: str
    workload: Workload
    names: tuple[str, ...]
    run: int = 1


@dataclass(frozen=True)
class Part:
    """What is run of one definition: a table of its own.

    solutions: by name. third_party: names of those that are not of this repository, each of which
    has tasks and a process of its own. skipped: a line for each solution and workload that is not
    run. path: of the traces, or None; keeps_third_party: of others' solutions, too. root: the data
    set that has the workloads' tensors. kept: traces of a run that is resumed. renew_worker: one
    worker process for all would run out of GPU memory.
    """

    definition: Definition
    solutions: dict[str, Solution]
    skipped: tuple[str, ...]
    tasks: tuple[Task, ...]
    path: Path | None = None
    third_party: frozenset[str] = frozenset()
    keeps_third_party: bool = False
    root: Path = paths.ROOT
    kept: tuple[Trace, ...] = ()
    renew_worker: bool = False

    @property
    def ours_to_run(self) -> dict[str, Solution]:
        """Return those of this repository's solutions that a task is for, by name."""
        ours = {}
        for task in self.tasks:
            if not self.is_third_party(task):
                ours.update((name, self.solutions[name]) for name in task.names)
        return ours

    def is_third_party(self, task: Task) -> bool:
        """Whether a task is for a solution that is not of this repository, and so for it alone."""
        return not self.third_party.isdisjoint(task.names)

    def keeps(self, task: Task) -> bool:
        """Whether its traces are kept: this repository's traces are of its solutions."""
        if self.path is None:
            return False
        return self.keeps_third_party or not self.is_third_party(task)

    def without(self, done: Mapping[tuple[str, str], Sequence[Trace]]) -> "Part":
        """Return what is left to evaluate.

        done: (workload's uuid, solution) -> its traces, each of which makes a run needless.
        """
        tasks = []
        kept = []
        for task in self.tasks:
            missing = []
            for name in task.names:
                traces = done.get((task.workload.uuid, name), ())
                if task.run > len(traces):
                    missing.append(name)
                else:
                    kept.append(traces[task.run - 1])
            if missing:
                tasks.append(replace(task, names=tuple(missing)))
        return replace(self, tasks=tuple(tasks), kept=tuple(kept))


@dataclass(frozen=True)
class Plan:
    """What a run does, decided before anything runs.

    device: what all tasks are evaluated on. parts: by the definition's name. notes: a line for each
    definition and file that was asked for and is not run, or not as it is written. config: FIB's,
    at the tolerance. clock: one of provenance.CLOCKS. command: the text that repeats the run.
    verbose: every wrong output is diagnosed on a GPU, not each solution's first. dataset: the name
    of the data set, if it is not this repository.
    """

    device: Device
    parts: dict[str, Part]
    notes: tuple[str, ...]
    tolerance: Tolerance
    config: BenchmarkConfig
    clock: str
    command: str
    verbose: bool
    dataset: str | None = None

    def __iter__(self) -> Iterator[Task]:
        for part in self.parts.values():
            yield from part.tasks

    @property
    def kept_have_passed(self) -> bool:
        """Whether all traces that a run keeps which is resumed say PASSED."""
        for part in self.parts.values():
            for trace in part.kept:
                if trace.evaluation.status != EvaluationStatus.PASSED:
                    return False
        return True

    @property
    def protocol(self) -> str:
        """How times are taken, and of which data set, as traces say it."""
        words = []
        if self.device.on_gpu:
            words.append(f"warmup={self.config.warmup_runs}")
            words.append(f"iterations={self.config.iterations}")
        words.append(f"trials={self.config.num_trials}")

        if not self.device.on_gpu:
            words.append("on the CPU through Triton's interpreter, not timed")
        elif fib.MAIN:
            words.append("fib=main")
        if self.clock == "gpu":
            words.append("clock=gpu")
        if self.dataset:
            words.append(f"dataset={self.dataset}")
        return " ".join(words)

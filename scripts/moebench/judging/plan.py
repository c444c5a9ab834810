"""What a run does, decided before anything runs: a Plan of Parts of Tasks.

A definition has a Part, and each of its workloads a Task with all solutions of this repository that
are run on it. A third-party solution, one that a user gives as a FIB JSON file, has tasks of its
own.
"""

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
    """A workload, and the solutions to evaluate on it one after another.

    definition: its name. label: the workload's, as users see it. names: of the solutions. run: with
    `--runs 3`, which of the three this belongs to, from 1.
    """

    definition: str
    label: str
    workload: Workload
    names: tuple[str, ...]
    run: int = 1


@dataclass(frozen=True)
class Part:
    """What is run of one definition.

    solutions: by name. skipped: a line for each solution and workload that is not run. path: the
    file that traces are kept in, or None. third_party: names of solutions that are not of this
    repository. keeps_third_party: whether their traces are kept, too. root: of the data set with
    the workloads' tensors. kept: traces of the run that is resumed, whose tasks are left out.
    renew_worker: whether each task needs a new worker process, as one for all would run out of GPU
    memory.
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
        """This repository's solutions that a task is for, by name."""
        ours = {}
        for task in self.tasks:
            if not self.is_third_party(task):
                ours |= {name: self.solutions[name] for name in task.names}
        return ours

    def is_third_party(self, task: Task) -> bool:
        """Whether a task is for a third-party solution, which is then its only one."""
        return not self.third_party.isdisjoint(task.names)

    def keeps(self, task: Task) -> bool:
        """Whether a task's traces are kept: traces/ is of this repository's solutions alone."""
        if self.path is None:
            return False
        return self.keeps_third_party or not self.is_third_party(task)

    def without(self, done: Mapping[tuple[str, str], Sequence[Trace]]) -> "Part":
        """Return the part without what an interrupted run has evaluated.

        done: (workload's uuid, solution) -> traces of its runs, from run 1.
        """
        tasks = []
        kept = []
        for task in self.tasks:
            missing = []
            for name in task.names:
                traces = done.get((task.workload.uuid, name), ())
                if task.run <= len(traces):
                    kept.append(traces[task.run - 1])
                else:
                    missing.append(name)
            if missing:
                tasks.append(replace(task, names=tuple(missing)))
        return replace(self, tasks=tuple(tasks), kept=tuple(kept))


@dataclass(frozen=True)
class Plan:
    """What a run does.

    device: that all tasks are evaluated on. parts: by the definition's name. notes: a line for each
    definition and file that was asked for and is not run, or is not what its name says. config:
    FIB's, at the tolerance. clock: one of provenance.CLOCKS. command: the text that repeats the
    run. verbose: whether on a GPU every wrong output is diagnosed, not only each solution's first.
    dataset: the name of the data set, if it is not this repository.
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
        """Whether all traces say PASSED that are kept of a run which is resumed."""
        for part in self.parts.values():
            for trace in part.kept:
                if trace.evaluation.status != EvaluationStatus.PASSED:
                    return False
        return True

    @property
    def protocol(self) -> str:
        """How times are taken, as traces say it: "warmup=10 iterations=50 trials=3"."""
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

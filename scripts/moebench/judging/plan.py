"""What a run is asked for, a RunRequest, and what it does then, a Plan of Parts of Tasks.

commands/run.py makes the request of its command line, and planning.py the plan of the request,
before anything runs. evaluate.py takes the plan's tasks, and reports show it.

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
    Trace,
    Workload,
)

from moebench.core import paths
from moebench.judging import fib
from moebench.judging.building import Solutions
from moebench.judging.device import Device
from moebench.judging.tolerances import Tolerance

EVERY = "all"  # among the definitions asked for: every one


@dataclass(frozen=True)
class RunRequest:
    """The arguments of `moebench run`, with their defaults. None stands for what was not given and
    has a default that depends on the machine.

    files: of third-party solutions, in FIB's JSON. solutions: names of this repository's; with
    neither, all of these are run. definitions: keys or names, or EVERY. workloads: as the user
    names them. tokens: numbers of tokens, each of which a workload is made of. routing: the kind of
    those. clock: one of provenance.CLOCKS. runs: how often all of it is run. save: whether traces
    are kept. output: their file. ray: a cluster's HOST:PORT, "" for one on this machine.
    command_line: the text that repeats the run.
    """

    files: Sequence[Path] = ()
    solutions: Sequence[str] = ()
    definitions: Sequence[str] = ()
    dataset: Path | None = None
    workloads: Sequence[str] = ()
    tokens: Sequence[int] = ()
    routing: str | None = None
    tolerance: str = "relaxed"
    clock: str | None = None
    warmup_runs: int = 10
    iterations: int = 50
    num_trials: int | None = None
    runs: int = 1
    timeout_seconds: int = 300
    save: bool | None = None
    output: Path | None = None
    resume: bool = False
    ray: str | None = None
    verbose: bool = False
    command_line: str = "moebench run"

    @property
    def wants_ours(self) -> bool:
        """Whether solutions of this repository are asked for: all of them, where none is named."""
        return bool(self.solutions) or not self.files

    def keeps_traces(self, on_gpu: bool) -> bool:
        """Whether traces are kept: by default on a GPU or with --output.

        Those of --tokens and --dataset are kept with --output alone, as traces/ is of this
        repository's own workloads.
        """
        has_output = self.output is not None
        if (self.tokens or self.dataset) and not has_output:
            return False
        if self.save is not None:
            return self.save
        return has_output or on_gpu


@dataclass(frozen=True)
class Task:
    """A workload, and the solutions to evaluate on it one after another.

    label: the workload's, as users see it. names: of the solutions. run: with `--runs 3`, which of
    the three this belongs to, from 1.
    """

    definition_name: str
    label: str
    workload: Workload
    names: tuple[str, ...]
    run: int = 1


@dataclass(frozen=True)
class Part:
    """What is run of one definition.

    solutions: packed, by name. skipped: a line for each solution and workload that is not run.
    path: the file that traces are kept in, or None. third_party: names of solutions that are not of
    this repository. keeps_third_party: whether their traces are kept, too. root: of the data set
    with the workloads' tensors. kept: traces of the run that is resumed, whose tasks are left out.
    renew_worker: whether each task needs a new worker process, as one for all would run out of GPU
    memory.
    """

    definition: Definition
    solutions: Solutions
    skipped: tuple[str, ...]
    tasks: tuple[Task, ...]
    path: Path | None = None
    third_party: frozenset[str] = frozenset()
    keeps_third_party: bool = False
    root: Path = paths.ROOT
    kept: tuple[Trace, ...] = ()
    renew_worker: bool = False

    @property
    def ours_to_run(self) -> Solutions:
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
        """How times are taken, as traces say it: "warmup=10 iterations=50 trials=3 rest=0.1s".

        Traces without the last word were made before the GPU rested.
        """
        words = []
        if self.device.on_gpu:
            words.append(f"warmup={self.config.warmup_runs}")
            words.append(f"iterations={self.config.iterations}")
        words.append(f"trials={self.config.num_trials}")

        if self.device.on_gpu:
            words.append(f"rest={fib.SECONDS_OF_REST}s")
            if fib.IS_MAIN_BRANCH:
                words.append("fib=main")
        else:
            words.append("on the CPU through Triton's interpreter, not timed")
        if self.clock == "gpu":
            words.append("clock=gpu")
        if self.dataset:
            words.append(f"dataset={self.dataset}")
        return " ".join(words)

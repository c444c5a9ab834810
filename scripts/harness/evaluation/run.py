"""Judge solutions on the workloads of a definition: FIB's benchmark on a CUDA device, FIB's judgement alone on the CPU.

On the CPU Triton's interpreter runs the kernels of the small geometries, which shows what is correct, not what is fast.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from flashinfer_bench import Evaluation, EvaluationStatus, Solution, Trace, Workload
from flashinfer_bench.bench.runner import PersistentRunner
from flashinfer_bench.data import load_jsonl_file

from harness.core import paths, provenance
from harness.core.errors import CannotRun
from harness.core.provenance import Provenance
from harness.evaluation import cpu_judge
from harness.evaluation.tolerances import Tolerance
from harness.operators import workloads
from harness.operators.catalogue import (
    FULL,
    GEOMETRIES,
    definition,
    definition_name,
    geometry_here,
    geometry_named,
    operator,
)
from harness.packing import manifest

MAX_LOG = 4000  # characters of a failure's log that a trace keeps


@dataclass(frozen=True)
class Protocol:
    """timeout: seconds per solution and workload. warmup_runs and iterations count on a CUDA device only."""

    tolerance: Tolerance
    on_gpu: bool
    num_trials: int
    timeout: int
    warmup_runs: int
    iterations: int

    def __str__(self) -> str:
        if self.on_gpu:
            return f"warmup={self.warmup_runs} iterations={self.iterations} trials={self.num_trials}"
        return f"trials={self.num_trials} on the CPU through Triton's interpreter, not timed"


@dataclass(frozen=True)
class Judged:
    """A workload's traces by the solutions' names; none, and an error, where the reference did not run."""

    label: str
    traces: dict[str, Trace]
    error: str | None = None

    @property
    def passed(self) -> bool:
        statuses = {trace.evaluation.status for trace in self.traces.values()}
        return statuses == {EvaluationStatus.PASSED}


def choose_geometry(wanted: str | None, on_gpu: bool, solutions: list[str]) -> str:
    """A key of GEOMETRIES from a key or a definition's name, or else what the first solution serves.

    Raises UserError for an unknown definition or solution, CannotRun for a full geometry without a CUDA device.
    """
    if wanted is None:
        served = manifest.read_manifest(manifest.choose(solutions)[0]).definitions if solutions else []
        return geometry_here(served, on_gpu) or geometry_here(list(GEOMETRIES), on_gpu)
    geometry = geometry_named(wanted)
    if geometry in FULL and not on_gpu:
        small = next(key for key in operator(geometry).geometries if key not in FULL)
        raise CannotRun(f"the {geometry} geometry needs a CUDA device; without one: --definition {small}")
    return geometry


def load_workloads(geometry: str) -> list[tuple[str, Workload]]:
    """(label, workload) in the order in which they are run; their tensors are generated where they are missing."""
    workloads.make(geometry)
    cases = workloads.cases_by_uuid(geometry)
    traces = load_jsonl_file(Trace, paths.workload_file(definition_name(geometry)))
    return [(cases[trace.workload.uuid].label, trace.workload) for trace in traces]


def publishable(evaluation: Evaluation) -> Evaluation:
    """Without a log if it passed, else without the log's folders: they are of no use to a reader of the trace."""
    passed = evaluation.status == EvaluationStatus.PASSED
    log = "" if passed else re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "", evaluation.log)[-MAX_LOG:]
    return evaluation.model_copy(update={"log": log})


def provenance_of(solution: Solution, protocol: Protocol, command: str) -> Provenance:
    """command: the text that repeats the run."""
    return provenance.here(
        f"cuda:{torch.cuda.current_device()}" if protocol.on_gpu else "cpu",
        source_sha1=solution.hash(),
        tolerance=str(protocol.tolerance),
        protocol=str(protocol),
        command=command,
        packages=provenance.packages(tuple(solution.spec.dependencies)),
    )


@contextmanager
def runner(geometry: str, solutions: list[Solution], protocol: Protocol) -> Iterator[Callable]:
    """A function that judges the solutions on a workload: packed name -> Evaluation.

    It raises RuntimeError where the reference does not run. With a CUDA device solutions run in worker processes of
    FIB, which end with the context.
    """
    stated = definition(geometry)
    if not protocol.on_gpu:
        settings = protocol.tolerance, paths.ROOT, protocol.num_trials, protocol.timeout
        yield lambda workload: cpu_judge.run_workload(stated, workload, solutions, *settings)
        return
    config = cpu_judge.config_for(
        protocol.tolerance,
        warmup_runs=protocol.warmup_runs,
        iterations=protocol.iterations,
        num_trials=protocol.num_trials,
        timeout_seconds=protocol.timeout,
    )
    persistent = PersistentRunner(config.log_dir)
    try:
        yield lambda workload: persistent.run_workload(stated, workload, solutions, config, paths.ROOT)
    finally:
        persistent.close()


def judge(
    geometry: str,
    todo: list[tuple[str, Workload]],
    solutions: dict[str, Solution],
    protocol: Protocol,
    command: str,
    started: Callable[[int, str], None],
) -> Iterator[Judged]:
    """Judge every solution on each workload; the traces carry their provenance.

    todo: as `load_workloads` gives it. solutions: name -> packed. started: called before each workload with the number
    of those that are done and its label. Close the iterator to end FIB's worker processes early.
    """
    sources = {name: provenance_of(solution, protocol, command) for name, solution in solutions.items()}
    with runner(geometry, list(solutions.values()), protocol) as run_workload:
        for done, (label, workload) in enumerate(todo):
            started(done, label)
            try:
                found = run_workload(workload)
            except RuntimeError as error:
                yield Judged(label, {}, f"the reference did not run: {error}")
                continue
            traces = {}
            for name, solution in solutions.items():
                evaluation = publishable(provenance.into_evaluation(found[solution.name], sources[name]))
                traces[name] = Trace(
                    definition=solution.definition, workload=workload, solution=solution.name, evaluation=evaluation
                )
            yield Judged(label, traces)

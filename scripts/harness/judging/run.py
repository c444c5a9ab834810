"""Judge solutions on the workloads of a definition: FIB's benchmark on a CUDA device, FIB's judgement alone on the CPU.

On the CPU Triton's interpreter runs the kernels of the small geometries, which shows what is correct, not what is fast.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from flashinfer_bench import BenchmarkConfig, Evaluation, EvaluationStatus, Solution, Trace, Workload

from harness.core import paths, provenance
from harness.judging import cpu_judge, diagnose_alone, frames, workers
from harness.judging.diagnosis import HEADING
from harness.judging.tolerances import Tolerance
from harness.operators import workloads
from harness.operators.catalogue import definition
from harness.packing import pack

MAX_LOG = 4000  # characters of a failure's log that a trace keeps


@dataclass(frozen=True)
class Judged:
    """A workload's traces by the solutions' names; none, and an error, where the reference did not run.

    lost: solution -> why it was not judged, where what ran it died more than once.
    """

    label: str
    traces: dict[str, Trace]
    error: str | None = None
    logs: dict[str, str] = field(default_factory=dict)  # of those that failed, but for the diagnosis
    reasons: dict[str, list[str]] = field(default_factory=dict)  # why those failed, in a few lines
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        statuses = {trace.evaluation.status for trace in self.traces.values()}
        return statuses == {EvaluationStatus.PASSED} and not self.error and not self.lost

    def joined(self, other: "Judged") -> "Judged":
        """Of solutions that were judged on this workload apart from each other."""
        merged = {name: getattr(self, name) | getattr(other, name) for name in ("traces", "logs", "reasons", "lost")}
        return replace(self, error=self.error or other.error, **merged)


def load_workloads(geometry: str, wanted: list[str]) -> list[tuple[str, Workload]]:
    """(label, workload) in the order in which they are run; their tensors are generated where they are missing.

    wanted: as `workloads.named` has it; [] for all. Raises UserError.
    """
    cases = workloads.cases_by_uuid(geometry)
    chosen = {case.uuid for text in wanted for case in workloads.named(text, geometry)} or set(cases)
    workloads.make(geometry)
    return [(cases[w.uuid].label, w) for w in workloads.recorded(geometry) if w.uuid in chosen]


def why_failed(evaluation: Evaluation, origins: dict[str, PurePosixPath]) -> list[str]:
    """The diagnosis in a log, or the error that it ends with and where it was raised."""
    _, diagnosed, sentences = evaluation.log.rpartition(f"{HEADING}\n")
    if diagnosed:
        return sentences.splitlines()
    if evaluation.status in (EvaluationStatus.RUNTIME_ERROR, EvaluationStatus.COMPILE_ERROR):
        return frames.raised(evaluation.log, origins)
    return evaluation.log.strip().splitlines()[-1:]


def publishable(evaluation: Evaluation) -> Evaluation:
    """Without a log if it passed, else without the log's folders: they are of no use to a reader of the trace."""
    passed = evaluation.status == EvaluationStatus.PASSED
    log = "" if passed else re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "", evaluation.log)[-MAX_LOG:]
    return evaluation.model_copy(update={"log": log})


def protocol_text(config: BenchmarkConfig, on_gpu: bool, clock: str) -> str:
    """How a run takes its times, as its traces say it. clock: one of CLOCKS."""
    if not on_gpu:
        return f"trials={config.num_trials} on the CPU through Triton's interpreter, not timed"
    text = f"warmup={config.warmup_runs} iterations={config.iterations} trials={config.num_trials}"
    return text + (f" clock={clock}" if clock != "events" else "")


@contextmanager
def judging(
    geometry: str,
    solutions: dict[str, Solution],
    tolerance: Tolerance,
    config: BenchmarkConfig,
    device: str,
    command: str,
    diagnose_all: bool = False,
    keep_worker: bool = True,
    clock: str = "events",
    host: str | None = None,
) -> Iterator[Callable[..., Judged]]:
    """A function that judges every solution, or those named, on a labelled workload; traces carry their provenance.

    solutions: name -> packed. config: FIB's, at the tolerance. command: the text that repeats the run. clock: one of
    CLOCKS. host: for the traces, if they are to say where each was made. With a CUDA device solutions run in worker
    processes of FIB, which end with the context, or without keep_worker with each workload; a solution that is wrong
    there runs once more, in a process of its own, for a diagnosis: on the first such workload, or with diagnose_all on
    every one.
    """
    full, protocol = definition(geometry), protocol_text(config, device != "cpu", clock)
    known = {"tolerance": str(tolerance), "protocol": protocol, "command": command, "host": host}
    sources = {}
    for name, packed in solutions.items():
        packages = provenance.packages(tuple(packed.spec.dependencies))
        sources[name] = provenance.here(device, source_sha1=packed.hash(), packages=packages, **known)
    order = deque(solutions)  # who comes first is timed on a colder GPU and host: another one on each workload
    diagnosed = set()

    def with_diagnosis(name: str, evaluation: Evaluation, workload: Workload) -> Evaluation:
        log = evaluation.log
        wrong = evaluation.status.value.startswith("INCORRECT") and HEADING not in log
        if wrong and (diagnose_all or name not in diagnosed):
            diagnosed.add(name)
            known = solutions[name], workload, tolerance, device, config.timeout_seconds
            log = "\n".join([log, HEADING, *diagnose_alone.in_a_process(geometry, *known)])
        return evaluation.model_copy(update={"log": log})

    def judge(label: str, workload: Workload, names: Collection[str] = tuple(solutions)) -> Judged:
        order.rotate(-1)
        chosen = [solutions[name] for name in order if name in names]
        try:
            with nullcontext(kept) if kept else workers.running(config.log_dir, clock) as runner:
                found = runner.run_workload(full, workload, chosen, config, paths.ROOT)
        except RuntimeError as error:
            return Judged(label, {}, f"the reference did not run: {error}")
        traces, logs, reasons = {}, {}, {}
        for name in names:
            packed = solutions[name]
            evaluation = found[packed.name]
            if evaluation.status != EvaluationStatus.PASSED:
                origins = pack.origins(name)
                log = frames.with_own_paths(evaluation.log, origins)
                evaluation = with_diagnosis(name, evaluation.model_copy(update={"log": log}), workload)
                reasons[name] = why_failed(evaluation, origins)
                if log := evaluation.log.partition(HEADING)[0].strip():
                    logs[name] = log
            evaluation = publishable(provenance.into_evaluation(evaluation, sources[name]))
            traces[name] = Trace(
                definition=packed.definition, workload=workload, solution=packed.name, evaluation=evaluation
            )
        return Judged(label, traces, None, logs, reasons)

    if device == "cpu":
        runners = nullcontext(cpu_judge)
    else:
        runners = workers.running(config.log_dir, clock) if keep_worker else nullcontext()
    with runners as kept:
        yield judge

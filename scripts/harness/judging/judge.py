"""Judge one cell of a plan: run through FIB -> put paths right -> diagnose if wrong -> provenance -> trace."""

import re
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from flashinfer_bench import Evaluation, EvaluationStatus, Solution, Trace

from harness.core import paths, provenance
from harness.judging import fib, frames, isolated
from harness.judging.calling import device_here, first_line
from harness.judging.diagnosis import HEADING
from harness.judging.plan import Cell, Part, Plan
from harness.judging.selection import Device, Say, build_slow, dependencies, first_uses, survey
from harness.operators.catalogue import definition
from harness.packing import pack

MAX_LOG = 4000  # characters of a failure's log that a trace keeps


@dataclass(frozen=True)
class Verdict:
    """reasons: why it failed, in a few lines. log: what was printed, tracebacks too, without the diagnosis."""

    trace: Trace
    reasons: tuple[str, ...] = ()
    log: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: verdicts by the solutions' names; none, and an error, where the reference did not run.

    lost: solution -> why it was not judged, where what ran it died twice.
    """

    cell: Cell
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    error: str | None = None
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def traces(self) -> list[Trace]:
        return [verdict.trace for verdict in self.verdicts.values()]

    @property
    def passed(self) -> bool:
        return not self.error and not self.lost and all(map(has_passed, self.traces))


def has_passed(trace: Trace) -> bool:
    return trace.evaluation.status == EvaluationStatus.PASSED


class Here:
    """This machine's device, on which a plan's cells are judged in their order."""

    text = ""

    def survey(self) -> Device:
        return survey(dependencies())

    def outcomes(self, plan: Plan, say: Say) -> Iterator[Outcome]:
        """Of each cell, as it comes. say: takes a line about what is built or run otherwise than usual."""
        for part in plan.parts.values():
            build_slow(part.solutions, first_uses({name for cell in part.cells for name in cell.names}), say)
            if part.renew_worker:
                say(f"{part.definition}: a worker process for each workload: with one for all memory would not suffice")
        with Judge(plan) as judge:
            for cell in plan:
                yield judge(cell)


class Judge:
    """Judges cells of a plan on the current device, whose processes end with the context.

    host: for the traces, if they are to say where each was made.
    """

    def __init__(self, plan: Plan, host: str | None = None):
        self.plan, self.host, self.device = plan, host, device_here()
        self.part, self.opened, self.diagnosed = None, ExitStack(), set()

    def __enter__(self) -> "Judge":
        return self

    def __exit__(self, *_) -> None:
        self.part = None
        self.opened.close()

    def __call__(self, cell: Cell) -> Outcome:
        part = self.ready_for(cell.geometry)
        try:
            found = self.through_fib(part, cell)
        except Exception as error:  # of the reference: FIB and the runners make a solution's its result
            return Outcome(cell, error=f"the reference did not run: {first_line(error).removeprefix('RuntimeError: ')}")
        return Outcome(cell, {name: self.verdict(part, cell, name, found) for name in cell.names})

    def ready_for(self, geometry: str) -> Part:
        """A runner for the definition, in place of the one before; solutions' sources are named by their hashes."""
        part = self.plan.parts[geometry]
        if part is self.part and not part.renew_worker:
            return part
        if part is not self.part:
            self.sources = {name: self.source(packed) for name, packed in part.solutions.items()}
            self.order = deque(part.solutions)
        self.opened.close()
        on_cpu = self.device == "cpu"
        runner = isolated.running() if on_cpu else fib.running(self.plan.config.log_dir, self.plan.clock)
        self.part, self.runner = part, self.opened.enter_context(runner)
        return part

    def source(self, packed: Solution) -> provenance.Provenance:
        known = {"tolerance": str(self.plan.tolerance), "protocol": self.plan.protocol, "command": self.plan.command}
        packages = provenance.packages(tuple(packed.spec.dependencies))
        return provenance.here(self.device, source_sha1=packed.hash(), packages=packages, host=self.host, **known)

    def through_fib(self, part: Part, cell: Cell) -> dict[str, Evaluation]:
        """By packed name. Whoever comes first is timed on a colder GPU and host: another one on each workload."""
        self.order.rotate(-1)
        chosen = [part.solutions[name] for name in self.order if name in cell.names]
        full = definition(part.geometry)
        return self.runner.run_workload(full, cell.workload, chosen, self.plan.config, paths.ROOT)

    def verdict(self, part: Part, cell: Cell, name: str, found: dict[str, Evaluation]) -> Verdict:
        packed = part.solutions[name]
        evaluation, reasons = found[packed.name], ()
        if evaluation.status != EvaluationStatus.PASSED:
            origins = pack.origins(name)
            evaluation = with_log(evaluation, frames.with_own_paths(evaluation.log, origins))
            evaluation = self.with_diagnosis(cell, name, packed, evaluation)
            reasons = tuple(why_failed(evaluation, origins))
        log = evaluation.log.partition(HEADING)[0].strip()
        evaluation = publishable(provenance.into_evaluation(evaluation, self.sources[name]))
        made = {"definition": packed.definition, "workload": cell.workload, "solution": packed.name}
        return Verdict(Trace(**made, evaluation=evaluation), reasons, log)

    def with_diagnosis(self, cell: Cell, name: str, packed: Solution, evaluation: Evaluation) -> Evaluation:
        """Of a wrong output that FIB's worker kept to itself: the solution's first one, or with verbose each."""
        wrong = evaluation.status.value.startswith("INCORRECT") and HEADING not in evaluation.log
        if not wrong or ((cell.geometry, name) in self.diagnosed and not self.plan.verbose):
            return evaluation
        self.diagnosed.add((cell.geometry, name))
        job = cell.geometry, packed, cell.workload, self.plan.tolerance, self.device, self.plan.config.timeout_seconds
        return with_log(evaluation, "\n".join([evaluation.log, HEADING, *isolated.diagnosed(*job)]))


def with_log(evaluation: Evaluation, log: str) -> Evaluation:
    return evaluation.model_copy(update={"log": log})


def why_failed(evaluation: Evaluation, origins: dict[str, PurePosixPath]) -> list[str]:
    """The diagnosis in a log, how the process ended, or the error that it ends with and where it was raised."""
    _, diagnosed, sentences = evaluation.log.rpartition(f"{HEADING}\n")
    if diagnosed:
        return sentences.splitlines()
    printed, ended, how = evaluation.log.rpartition(fib.ENDED)
    if ended:
        return [fib.ENDED + how.strip(), *frames.raised(printed, origins)[1:]]
    if evaluation.status in (EvaluationStatus.RUNTIME_ERROR, EvaluationStatus.COMPILE_ERROR):
        return frames.raised(evaluation.log, origins)
    return evaluation.log.strip().splitlines()[-1:]


def publishable(evaluation: Evaluation) -> Evaluation:
    """Without a log if it passed, else without the log's folders: they are of no use to a reader of the trace."""
    passed = evaluation.status == EvaluationStatus.PASSED
    return with_log(evaluation, "" if passed else re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "", evaluation.log)[-MAX_LOG:])

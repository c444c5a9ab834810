"""Judge one cell of a plan: run through FIB -> put paths right -> diagnose if wrong -> provenance
-> trace.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from flashinfer_bench import Evaluation, EvaluationStatus, Solution, Trace

from moebench.core import provenance
from moebench.judging import fib, frames, isolated
from moebench.judging.calling import device_here, first_line
from moebench.judging.diagnosis import HEADING
from moebench.judging.plan import Cell, Part, Plan
from moebench.judging.selection import Say, build_slow, survey
from moebench.packing import pack
from moebench.packing.fingerprint import source_of

PASSED = EvaluationStatus.PASSED
# characters of a failure's log that a trace keeps, without its folders, of no use to its reader
MAX_LOG = 4000
FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")


@dataclass(frozen=True)
class Verdict:
    """reasons: why it failed, in a few lines. log: what was printed, tracebacks too, without the
    diagnosis.
    """

    trace: Trace
    reasons: tuple[str, ...] = ()
    log: str = ""

    @property
    def passed(self) -> bool:
        return self.trace.evaluation.status == PASSED


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: verdicts by the solutions' names.

    lost: solution -> why it was not judged: the reference did not run, or what ran it died twice.
    """

    cell: Cell
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.lost and all(verdict.passed for verdict in self.verdicts.values())


class Here:
    """This machine's device, on which a plan's cells are judged in their order."""

    text, survey = "", staticmethod(survey)

    def outcomes(self, plan: Plan, say: Say) -> Iterator[Outcome]:
        """Of each cell, as it comes. say: takes a line about what is built or run otherwise than
        usual.
        """
        for part in plan.parts.values():
            asked = {name for cell in part.cells for name in cell.names}
            build_slow({name: packed for name, packed in part.ours.items() if name in asked}, say)
        with closing(Judge(plan)) as judge:
            yield from map(judge, plan)


class Judge:
    """Judges cells of a plan on the current device, whose processes end when it is closed.

    host: for the traces, if they are to say where each was made.
    """

    def __init__(self, plan: Plan, host: str | None = None):
        self.plan, self.host, self.device = plan, host, device_here()
        self.part, self.guest, self.opened, self.diagnosed = None, None, ExitStack(), set()

    def close(self) -> None:
        self.opened.close()

    def __call__(self, cell: Cell) -> Outcome:
        part = self.ready_for(cell)
        try:
            chosen = [part.solutions[name] for name in cell.names]
            found = self.runner.run_workload(
                part.full, cell.workload, chosen, self.plan.config, part.root
            )
        except Exception as error:  # of the reference: what a solution does is its result
            why = f"the reference did not run: {first_line(error).removeprefix('RuntimeError: ')}"
            return Outcome(cell, lost=dict.fromkeys(cell.names, why))
        return Outcome(cell, {name: self.verdict(part, cell, name, found) for name in cell.names})

    def ready_for(self, cell: Cell) -> Part:
        """Its part, with a runner in place of the one before where that was of another part, or is
        not to be shared.
        """
        part, plan = self.plan.parts[cell.definition], self.plan
        guest = next((name for name in cell.names if name in part.theirs), None)
        if part is not self.part or guest != self.guest or part.renew_worker:
            self.opened.close()
            runner = closing(isolated.Runner()) if self.device == "cpu" else fib.running(plan.clock)
            self.runner = self.opened.enter_context(runner)
        if part is not self.part:
            self.sources = {name: self.source(packed) for name, packed in part.solutions.items()}
        self.part, self.guest = part, guest
        return part

    def source(self, packed: Solution) -> provenance.Provenance:
        plan, packages = self.plan, provenance.packages(tuple(packed.spec.dependencies))
        known = {
            "tolerance": str(plan.tolerance),
            "protocol": plan.protocol,
            "command": plan.command,
        }
        return provenance.here(
            self.device, **source_of(packed), packages=packages, host=self.host, **known
        )

    def verdict(self, part: Part, cell: Cell, name: str, found: dict[str, Evaluation]) -> Verdict:
        packed = part.solutions[name]
        evaluation = found[packed.name]
        log, kept, reasons = evaluation.log, "", ()  # kept: of the log, in the trace
        if evaluation.status != PASSED:
            own = {source.path: PurePosixPath(name, source.path) for source in packed.sources}
            origins = own if name in part.theirs else pack.origins(name)
            log = frames.with_own_paths(log, origins) + self.diagnosis(
                part, cell, packed, evaluation
            )
            kept = FOLDERS.sub("", log)[-MAX_LOG:]
            reasons = tuple(why_failed(evaluation.status, log, origins))
        evaluation = provenance.into_evaluation(evaluation, self.sources[name]).model_copy(
            update={"log": kept}
        )
        known = {
            "definition": packed.definition,
            "solution": packed.name,
            "workload": cell.workload,
        }
        return Verdict(
            Trace(**known, evaluation=evaluation), reasons, log.partition(HEADING)[0].strip()
        )

    def diagnosis(self, part: Part, cell: Cell, packed: Solution, evaluation: Evaluation) -> str:
        """Of a wrong output that FIB's worker kept to itself: of a solution's first one, or with
        verbose of each.
        """
        wrong = evaluation.status.value.startswith("INCORRECT") and HEADING not in evaluation.log
        wrong = (
            wrong and fib.resolve_evaluator(part.full).__name__ in fib.ELEMENTWISE
        )  # others draw at random
        if not wrong or (packed.name in self.diagnosed and not self.plan.verbose):
            return ""
        self.diagnosed.add(packed.name)
        job = part.full, part.root, packed, cell.workload, self.plan.tolerance, self.device
        return "\n".join(["", HEADING, *isolated.diagnosed(self.plan.config.timeout_seconds, *job)])


def why_failed(status: EvaluationStatus, log: str, origins: dict[str, PurePosixPath]) -> list[str]:
    """The diagnosis in a log, how the process ended, or the error that it ends with; and where it
    was raised.
    """
    _, diagnosed, sentences = log.rpartition(f"{HEADING}\n")
    if diagnosed:
        return sentences.splitlines()
    printed, ended, how = log.rpartition(fib.ENDED)
    if ended:
        return [ended + how.strip(), *frames.raised(printed, origins)[1:]]
    if status in (EvaluationStatus.RUNTIME_ERROR, EvaluationStatus.COMPILE_ERROR):
        return frames.raised(log, origins)
    return log.strip().splitlines()[-1:]

"""Evaluate a task of a plan: run -> look again -> put paths right -> provenance -> trace."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from flashinfer_bench import EvaluationStatus, Solution, Trace

from moebench.core import provenance
from moebench.core.errors import UserError
from moebench.core.printable import cut_line, printable, readable_log
from moebench.judging import fib
from moebench.judging.calling import device_here, first_line
from moebench.judging.explaining import frames
from moebench.judging.isolation.runner import Result, Runner
from moebench.judging.plan import Part, Plan, Task
from moebench.judging.second_look import SecondLook
from moebench.judging.selection import Say, build_slow, survey
from moebench.packing import pack
from moebench.packing.fingerprint import source_hashes

PASSED = EvaluationStatus.PASSED
HEADING = "diagnosis:"  # before the sentences in a trace's log
REASON = 300  # characters of a line that says why
# characters of a failure's log that a trace keeps, without its folders, of no use to its reader
MAX_LOG = 4000
FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")
RAISED = (EvaluationStatus.RUNTIME_ERROR, EvaluationStatus.COMPILE_ERROR)


@dataclass(frozen=True)
class EvaluatedSolution:
    """A solution's trace on a workload.

    reasons: why it failed, or what is odd although it passes, in a few lines. log: what was
    printed, with tracebacks, and without the diagnosis.
    """

    trace: Trace
    reasons: tuple[str, ...] = ()
    log: str = ""

    @property
    def passed(self) -> bool:
        return self.trace.evaluation.status == PASSED


@dataclass(frozen=True)
class Outcome:
    """What became of a task: evaluated solutions by their names.

    lost: solution -> why it was not evaluated: the reference did not run, or what ran it died
    twice.
    """

    task: Task
    evaluated: dict[str, EvaluatedSolution] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.lost and all(solution.passed for solution in self.evaluated.values())


class Here:
    """This machine's device, on which a plan's tasks are done in their order."""

    text = ""
    survey = staticmethod(survey)

    def outcomes(self, plan: Plan, say: Say) -> Iterator[Outcome]:
        """Yield each task's outcome. say: takes a line about what is built or run otherwise."""
        for part in plan.parts.values():
            asked = {name for task in part.tasks for name in task.names}
            build_slow({name: packed for name, packed in part.ours.items() if name in asked}, say)

        with closing(Evaluator(plan)) as evaluator:
            for task in plan:
                yield evaluator.evaluate(task)


class Evaluator:
    """Does a plan's tasks on the current device, in processes that end when it is closed.

    host: for the traces, if they are to say where each was made.
    """

    def __init__(self, plan: Plan, host: str | None = None):
        self.plan = plan
        self.host = host
        self.device = device_here()
        self.part: Part | None = None  # of the task before
        self.third_party: str | None = None  # the only solution that the runner is for
        self.runner = None
        self.runner_context = ExitStack()
        self.provenances: dict[str, provenance.Provenance] = {}
        self.hung: dict[tuple[str, str], str] = {}  # definition and solution -> on which workload
        self.second_look = SecondLook(plan, self.device)

    def close(self) -> None:
        self.runner_context.close()
        self.second_look.close()

    def evaluate(self, task: Task) -> Outcome:
        """Return what became of a task. Raises UserError for what is wrong with this machine."""
        part = self.prepare(task)
        results = {}
        called = []
        for name in task.names:
            if (task.definition, name) in self.hung:
                results[name] = self.skipped(task, name)
            else:
                called.append(name)

        try:
            results |= self.run(part, task, called)
        except UserError:  # of this machine: no process can be started, no file written
            raise
        except Exception as error:  # of the reference: what a solution does is its result
            why = cut_line(printable(first_line(error).removeprefix("RuntimeError: ")), REASON)
            if not why.startswith("the reference "):
                why = f"the reference did not run: {why}"
            return Outcome(task, lost=dict.fromkeys(task.names, why))

        evaluated = {}
        for name in task.names:
            if results[name].evaluation.status == EvaluationStatus.TIMEOUT:
                self.hung.setdefault((task.definition, name), task.label)
            evaluated[name] = self.evaluated(part, task, name, results[name])
        return Outcome(task, evaluated)

    def run(self, part: Part, task: Task, names: list[str]) -> dict[str, Result]:
        """Return results by name, looked at again where FIB has compared. Raises what it raises."""
        if not names:
            return {}

        solutions = [part.solutions[name] for name in names]
        by_packed_name = self.runner.run_workload(
            part.full, task.workload, solutions, self.plan.config, part.root
        )
        by_name = {name: by_packed_name[part.solutions[name].name] for name in names}
        if isinstance(self.runner, Runner):
            return by_name

        results = {name: Result(evaluation) for name, evaluation in by_name.items()}
        return results | self.second_look.at(part, task, results)

    def skipped(self, task: Task, name: str) -> Result:
        """Return the result of a solution that is not called again after a time-out."""
        label = self.hung[task.definition, name]
        text = f"skipped: no result after {self.plan.config.timeout_seconds} s on {label}"
        text += ", see there; --timeout takes other seconds"
        return Result(fib.evaluation(EvaluationStatus.TIMEOUT, self.device, text))

    def prepare(self, task: Task) -> Part:
        """Return a task's part, with a new runner where the one before is not to be shared."""
        part = self.plan.parts[task.definition]
        third_party = next((name for name in task.names if name in part.third_party), None)
        if part is not self.part or third_party != self.third_party or part.renew_worker:
            self.runner_context.close()
            self.runner = self.runner_context.enter_context(self.new_runner(part, third_party))

        if part is not self.part:
            self.provenances = {
                name: self.provenance_of(packed) for name, packed in part.solutions.items()
            }
        self.part = part
        self.third_party = third_party
        return part

    def new_runner(self, part: Part, third_party: str | None):
        """Return the context of a runner: one that compares where no solution runs, or FIB's."""
        if self.device == "cpu":
            return closing(Runner())
        if third_party and fib.is_elementwise(part.full):
            return closing(Runner(self.device, self.plan.clock))
        return fib.running(self.plan.clock)

    def provenance_of(self, packed: Solution) -> provenance.Provenance:
        return provenance.here(
            self.device,
            **source_hashes(packed),
            packages=provenance.packages(tuple(packed.spec.dependencies)),
            host=self.host,
            tolerance=str(self.plan.tolerance),
            protocol=self.plan.protocol,
            command=self.plan.command,
        )

    def evaluated(self, part: Part, task: Task, name: str, result: Result) -> EvaluatedSolution:
        """Return a solution's trace, with why it failed."""
        packed = part.solutions[name]
        status = result.evaluation.status
        log = readable_log(result.evaluation.log)
        sentences = [cut_line(printable(sentence), REASON) for sentence in result.sentences]
        reasons = sentences
        if status != PASSED:
            origins = origins_of(part, name)
            log = frames.with_own_paths(log, origins)
            reasons = sentences or why_failed(status, log, origins)

        evaluation = provenance.into_evaluation(result.evaluation, self.provenances[name])
        evaluation = evaluation.model_copy(update={"log": kept_log(status, log, sentences)})
        trace = Trace(
            definition=packed.definition,
            solution=packed.name,
            workload=task.workload,
            evaluation=evaluation,
        )
        lines = tuple(cut_line(reason, REASON) for reason in reasons)
        return EvaluatedSolution(trace, lines, log.strip())


def origins_of(part: Part, name: str) -> dict[str, PurePosixPath]:
    """Return packed path -> path in the repository, or below the name of a third party's."""
    if name not in part.third_party:
        return pack.origins(name)

    sources = part.solutions[name].sources
    return {source.path: PurePosixPath(name, source.path) for source in sources}


def kept_log(status: EvaluationStatus, log: str, sentences: list[str]) -> str:
    """Return what a trace keeps: nothing of what a solution prints that passes."""
    parts = [] if status == PASSED else [log]
    if sentences:
        parts += [HEADING, *sentences]
    return FOLDERS.sub("", "\n".join(parts))[-MAX_LOG:]


def why_failed(status: EvaluationStatus, log: str, origins: dict[str, PurePosixPath]) -> list[str]:
    """Return how the process ended, or the error that a log ends with, and where it was raised."""
    if status == EvaluationStatus.TIMEOUT:
        return [log.strip().splitlines()[-1], *frames.hung(log, origins)]

    printed, ended, how = log.rpartition(fib.ENDED)
    if ended:
        _, *places = frames.raised(printed, origins)
        return [ended + how.strip(), *places]
    if status in RAISED:
        return frames.raised(log, origins)
    return log.strip().splitlines()[-1:]

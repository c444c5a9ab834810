"""Evaluate a task of a plan: run -> look again -> put paths right -> provenance -> trace."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from flashinfer_bench import EvaluationStatus, Trace

from moebench.core import provenance
from moebench.core.errors import UserError
from moebench.core.printable import cut_line, printable, readable_log
from moebench.judging import fib
from moebench.judging.calling import device_here, first_line
from moebench.judging.explaining import frames
from moebench.judging.isolation.comparison import Finding
from moebench.judging.isolation.runner import Runner
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
        called = [name for name in task.names if (task.definition, name) not in self.hung]
        try:
            findings = self.run(part, task, called)
        except UserError:  # of this machine: no process can be started, no file written
            raise
        except Exception as error:  # of the reference: what a solution does is its result
            reason = cut_line(printable(first_line(error).removeprefix("RuntimeError: ")), REASON)
            if not reason.startswith("the reference "):
                reason = f"the reference did not run: {reason}"
            return Outcome(task, lost=dict.fromkeys(task.names, reason))

        evaluated = {}
        for name in task.names:
            finding = findings[name] if name in findings else self.skipped(task, name)
            if finding.status == EvaluationStatus.TIMEOUT:
                self.hung.setdefault((task.definition, name), task.label)
            evaluated[name] = self.evaluated(part, task, name, finding)
        return Outcome(task, evaluated)

    def prepare(self, task: Task) -> Part:
        """Return a task's part, with a new runner where the one before is not to be shared."""
        part = self.plan.parts[task.definition]
        third_party = next((name for name in task.names if name in part.third_party), None)
        if part is not self.part or third_party != self.third_party or part.renew_worker:
            self.runner_context.close()
            if self.device == "cpu":
                context = closing(Runner())
            elif third_party and fib.is_elementwise(part.full):
                context = closing(Runner(self.device, self.plan.clock))
            else:
                context = fib.running(self.plan.clock)
            self.runner = self.runner_context.enter_context(context)

        if part is not self.part:
            self.provenances = {}
            for name, packed in part.solutions.items():
                self.provenances[name] = provenance.here(
                    self.device,
                    **source_hashes(packed),
                    packages=provenance.packages(tuple(packed.spec.dependencies)),
                    host=self.host,
                    tolerance=str(self.plan.tolerance),
                    protocol=self.plan.protocol,
                    command=self.plan.command,
                )
        self.part = part
        self.third_party = third_party
        return part

    def run(self, part: Part, task: Task, names: list[str]) -> dict[str, Finding]:
        """Return what is found by name, after a second look where FIB has compared.

        Raises what the runner raises.
        """
        if not names:
            return {}

        solutions = [part.solutions[name] for name in names]
        by_packed_name = self.runner.run_workload(
            part.full, task.workload, solutions, self.plan.config, part.root
        )
        by_name = {name: by_packed_name[part.solutions[name].name] for name in names}
        if isinstance(self.runner, Runner):
            return by_name

        findings = {}
        for name, evaluation in by_name.items():
            findings[name] = Finding(
                evaluation.status,
                evaluation.correctness,
                performance=evaluation.performance,
                log=evaluation.log,
            )
        return findings | self.second_look.at(part, task, findings)

    def skipped(self, task: Task, name: str) -> Finding:
        """Return what is said of a solution that is not called again after a time-out."""
        seconds = self.plan.config.timeout_seconds
        label = self.hung[task.definition, name]
        log = f"skipped: no result after {seconds} s on {label}, see there; "
        return Finding(EvaluationStatus.TIMEOUT, log=f"{log}--timeout takes other seconds")

    def evaluated(self, part: Part, task: Task, name: str, finding: Finding) -> EvaluatedSolution:
        """Return a solution's trace, with why it failed."""
        packed = part.solutions[name]
        log = readable_log(finding.log)
        reasons = finding.sentences
        if finding.status != PASSED:
            if name in part.third_party:
                origins = {each.path: PurePosixPath(name, each.path) for each in packed.sources}
            else:
                origins = pack.origins(name)
            log = frames.with_own_paths(log, origins)
            reasons = reasons or why_failed(finding.status, log, origins)
        reasons = tuple(cut_line(printable(reason), REASON) for reason in reasons)

        kept = [log] if finding.status != PASSED else []  # nothing of what one prints that passes
        if finding.sentences:
            kept += [HEADING, *reasons]
        kept_log = FOLDERS.sub("", "\n".join(kept))[-MAX_LOG:]
        evaluation = fib.make_eval(
            finding.status, self.device, None, finding.correctness, finding.performance, kept_log
        )
        trials_ms = getattr(finding.performance, "trials_ms", [])
        measured_by = self.provenances[name].with_trials(trials_ms)
        trace = Trace(
            definition=packed.definition,
            solution=packed.name,
            workload=task.workload,
            evaluation=provenance.into_evaluation(evaluation, measured_by),
        )
        return EvaluatedSolution(trace, reasons, log.strip())


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

"""Evaluate a task of a plan: run -> look again -> put paths right -> provenance -> trace."""

import re
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from flashinfer_bench import EvaluationStatus, Solution, Trace

from moebench.core import provenance
from moebench.core.errors import UserError
from moebench.core.printable import cut_line, printable, readable_log
from moebench.core.provenance import Provenance
from moebench.judging import fib
from moebench.judging.calling import first_line
from moebench.judging.device import device_here
from moebench.judging.explaining import frames
from moebench.judging.isolation.comparison import Finding
from moebench.judging.isolation.runner import Runner
from moebench.judging.plan import Part, Plan, Task
from moebench.judging.second_look import SecondLook
from moebench.packing import pack
from moebench.packing.fingerprint import source_hashes

PASSED = EvaluationStatus.PASSED
TIMEOUT = EvaluationStatus.TIMEOUT
RAISED = (EvaluationStatus.RUNTIME_ERROR, EvaluationStatus.COMPILE_ERROR)
HEADING = "diagnosis:"  # before the sentences in a trace's log
REASON = 300  # characters of a line that says why
# characters of a failure's log that a trace keeps, without its folders, of no use to its reader
MAX_LOG = 4000
FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")


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


class Evaluator:
    """Does a plan's tasks on the current device, in processes that end when it is closed.

    host: for the traces, if they are to say where each was made.
    """

    def __init__(self, plan: Plan, host: str | None = None):
        self.plan = plan
        self.host = host
        self.device = device_here()
        self.runner = None
        self.runner_context = ExitStack()
        self.runner_is_for: tuple | None = None  # the definition, and a third-party solution alone
        self.provenances: dict[str, Provenance] = {}  # by the packed solution's name and definition
        self.hung: dict[tuple[str, str], str] = {}  # definition and solution -> on which workload
        self.second_look = SecondLook(plan, self.device)

    def close(self) -> None:
        self.runner_context.close()
        self.second_look.close()

    def evaluate(self, task: Task) -> Outcome:
        """Return what became of a task. Raises UserError for what is wrong with this machine."""
        part = self.plan.parts[task.definition]
        try:
            findings = self.run(part, task)
        except UserError:  # of this machine: no process can be started, no file written
            raise
        except Exception as error:  # of the reference: what a solution does is its result
            return Outcome(task, lost=dict.fromkeys(task.names, reference_fault(error)))

        evaluated = {}
        for name in task.names:
            evaluated[name] = self.evaluated(part, task, name, findings[name])
        return Outcome(task, evaluated)

    def run(self, part: Part, task: Task) -> dict[str, Finding]:
        """Return what is found by name. A solution that hung is not called again."""
        called = []
        findings = {}
        for name in task.names:
            if (task.definition, name) in self.hung:
                findings[name] = self.skipped(task, name)
            else:
                called.append(name)
        if called:
            findings.update(self.call(part, task, called))

        for name in called:
            if findings[name].status == TIMEOUT:
                self.hung[task.definition, name] = task.label
        return findings

    def skipped(self, task: Task, name: str) -> Finding:
        """Return what is said of a solution that is not called again after a time-out."""
        seconds = self.plan.config.timeout_seconds
        label = self.hung[task.definition, name]
        log = f"skipped: no result after {seconds} s on {label}, see there; "
        return Finding(TIMEOUT, log=f"{log}--timeout takes other seconds")

    def call(self, part: Part, task: Task, names: list[str]) -> dict[str, Finding]:
        """Return what is found by name, after a second look where FIB has compared.

        Raises what the runner raises.
        """
        runner = self.runner_for(part, task)
        config = self.plan.config
        solutions = [part.solutions[name] for name in names]
        results = runner.run_workload(part.definition, task.workload, solutions, config, part.root)

        findings = {}
        for name, packed in zip(names, solutions, strict=True):
            findings[name] = results[packed.name]
        if isinstance(runner, Runner):
            return findings

        for name, evaluation in findings.items():
            findings[name] = Finding.by_fib(evaluation)
        return findings | self.second_look.at(part, task, findings)

    def runner_for(self, part: Part, task: Task) -> Runner | fib.Runner:
        """Return the runner for a task, a new one where the one before is not to be shared.

        Raises UserError where none can be started, which is no fault of the reference.
        """
        third_party = task.names if part.is_third_party(task) else ()
        is_for = (task.definition, third_party)
        if is_for != self.runner_is_for or part.renew_worker:
            self.runner_is_for = None
            self.runner_context.close()
            context = self.new_runner(part, bool(third_party))
            try:
                self.runner = self.runner_context.enter_context(context)
            except RuntimeError as error:  # FIB's, without a device or a worker
                raise UserError(f"no worker can be started: {first_line(error)}") from error
            self.runner_is_for = is_for
        return self.runner

    def new_runner(self, part: Part, is_third_party: bool) -> AbstractContextManager:
        """Return a runner that closes with its context: FIB's on a GPU, for whoever is trusted or
        cannot be compared elsewhere.
        """
        if self.device == "cpu":
            return closing(Runner())
        if is_third_party and fib.is_elementwise(part.definition):
            return closing(Runner(self.device, self.plan.clock))
        return fib.running(self.plan.clock)

    def evaluated(self, part: Part, task: Task, name: str, finding: Finding) -> EvaluatedSolution:
        """Return a solution's trace, with why it failed."""
        packed = part.solutions[name]
        has_passed = finding.status == PASSED
        log = readable_log(finding.log)
        reasons = finding.sentences
        if not has_passed:
            origins = third_party_origins(name, packed)
            if name not in part.third_party:
                origins = pack.origins(name)
            log = frames.with_own_paths(log, origins)
            reasons = reasons or why_failed(finding.status, log, origins)
        reasons = tuple(cut_line(printable(reason), REASON) for reason in reasons)

        kept_lines = [] if has_passed else [log]  # nothing of what one prints that passes
        if finding.sentences:
            kept_lines += [HEADING, *reasons]
        trace = self.trace(task, packed, finding, "\n".join(kept_lines))
        return EvaluatedSolution(trace, reasons, log.strip())

    def trace(self, task: Task, packed: Solution, finding: Finding, log: str) -> Trace:
        """Return a finding as FIB keeps it, with its provenance."""
        short_log = FOLDERS.sub("", log)[-MAX_LOG:]
        evaluation = fib.make_eval(
            finding.status, self.device, None, finding.correctness, finding.performance, short_log
        )
        trials_ms = getattr(finding.performance, "trials_ms", [])
        measured_by = self.measured_by(packed).with_trials(trials_ms)
        return Trace(
            definition=packed.definition,
            solution=packed.name,
            workload=task.workload,
            evaluation=provenance.into_evaluation(evaluation, measured_by),
        )

    def measured_by(self, packed: Solution) -> Provenance:
        """Return where figures of a solution come from, the same for all of its workloads."""
        key = f"{packed.definition} {packed.name}"
        if key not in self.provenances:
            self.provenances[key] = provenance.here(
                self.device,
                **source_hashes(packed),
                packages=provenance.packages(tuple(packed.spec.dependencies)),
                host=self.host,
                tolerance=str(self.plan.tolerance),
                protocol=self.plan.protocol,
                command=self.plan.command,
            )
        return self.provenances[key]


def reference_fault(error: Exception) -> str:
    """Return in a line why the reference did not run, which is all that a runner raises."""
    line = printable(first_line(error)).removeprefix("RuntimeError: ")
    reason = cut_line(line, REASON)
    if reason.startswith("the reference "):
        return reason
    return f"the reference did not run: {reason}"


def third_party_origins(name: str, packed: Solution) -> dict[str, PurePosixPath]:
    """Return path in a packed solution -> the path that is shown: below the solution's name."""
    return {source.path: PurePosixPath(name, source.path) for source in packed.sources}


def why_failed(status: EvaluationStatus, log: str, origins: frames.Origins) -> list[str]:
    """Return how the process ended, or the error that a log ends with, and where it was raised."""
    last_line = log.strip().splitlines()[-1:]
    if status == TIMEOUT:
        return last_line + frames.hung(log, origins)

    printed, ended, how = log.rpartition(fib.ENDED)
    if ended:
        _, *places = frames.raised(printed, origins)
        return [ended + how.strip(), *places]
    return frames.raised(log, origins) if status in RAISED else last_line

"""Evaluate a task of a plan: run its solutions, and make FIB traces of what is found about them.

A Task goes in, a workload and the solutions to run on it. An Outcome comes out, which has for each
solution a Trace with its status, errors, times and provenance, and why it failed, for the user:

    INCORRECT_NUMERICAL, ["largest absolute error 3.5 at (0, 17): got 1.5, want 5", ...]
"""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from flashinfer_bench import EvaluationStatus, Solution, Trace

from moebench.core import provenance
from moebench.core.errors import UserError, first_line
from moebench.core.printable import cut_line, printable, readable_log
from moebench.core.provenance import Provenance
from moebench.judging import fib
from moebench.judging.building import Say, build_slow
from moebench.judging.device import device_here, survey
from moebench.judging.explaining import frames
from moebench.judging.isolation.comparison import Finding
from moebench.judging.isolation.runner import IsolatedRunner
from moebench.judging.plan import Part, Plan, Task
from moebench.judging.runners import Runners
from moebench.judging.second_look import SecondLook
from moebench.packing import pack
from moebench.packing.fingerprint import source_hashes

PASSED = EvaluationStatus.PASSED
TIMEOUT = EvaluationStatus.TIMEOUT
RAISED = (EvaluationStatus.RUNTIME_ERROR, EvaluationStatus.COMPILE_ERROR)
NOT_RUN = "the process that was to run it ended before, and no other one took its place"
HEADING = "diagnosis:"  # before the reasons in a trace's log
MAX_REASON = 300  # characters of a reason
MAX_LOG = 4000  # characters of a failure's log that a trace keeps, from its end
# Folders before a file's name, which say nothing to whoever reads a trace on another machine
FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")


@dataclass(frozen=True)
class EvaluatedSolution:
    """A solution's trace on a workload.

    reasons: lines that say why it failed, or what is odd although it passes. log: what it printed,
    with tracebacks, and without the reasons.
    """

    trace: Trace
    reasons: tuple[str, ...] = ()
    log: str = ""

    @property
    def passed(self) -> bool:
        return self.trace.evaluation.status == PASSED


@dataclass(frozen=True)
class Outcome:
    """What became of a task. evaluated: by the solution's name.

    lost: solution's name -> why it was not evaluated, through no fault of its own: the reference
    did not run, or the process that evaluates could not go on.
    """

    task: Task
    evaluated: dict[str, EvaluatedSolution] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        results = self.evaluated.values()
        return not self.lost and all(result.passed for result in results)


class ThisMachine:
    """Where `moebench run` evaluates without --ray. It has what on_ray.Cluster has, so that a run
    may take either.
    """

    text = ""  # for the run's first line, in which a cluster says what it has
    survey = staticmethod(survey)

    def outcomes(self, plan: Plan, say: Say) -> Iterator[Outcome]:
        """Yield each task's outcome, in order. say: takes lines on what is built beforehand."""
        for part in plan.parts.values():
            build_slow(part.ours_to_run, say)

        with closing(Evaluator(plan)) as evaluator:
            for task in plan:
                yield evaluator.evaluate(task)


class Evaluator:
    """Evaluates a plan's tasks on this machine's device, in processes that end when it is closed.

    host: this machine, for the traces to say where each was made; None: they do not.
    """

    def __init__(self, plan: Plan, host: str | None = None):
        self.plan = plan
        self.host = host
        self.device = device_here()
        self.runners = Runners(self.device, plan.clock)
        self.second_look = SecondLook(plan, self.device)
        self.provenances: dict[str, Provenance] = {}  # by "DEFINITION PACKED_NAME"
        self.hung: dict[tuple[str, str], str] = {}  # (definition, name) -> workload

    def close(self) -> None:
        self.runners.close()
        self.second_look.close()

    def evaluate(self, task: Task) -> Outcome:
        """Return what became of a task. Raises UserError for what is wrong with this machine."""
        part = self.plan.parts[task.definition_name]
        try:
            findings = self.findings(part, task)
        except UserError:  # of this machine: no process can be started, no file written
            raise
        except Exception as error:
            # of the reference: what a solution does is its result
            return Outcome(task, lost=dict.fromkeys(task.names, reference_fault(error)))

        evaluated = {}
        lost = {}
        for name in task.names:
            if name in findings:
                evaluated[name] = self.evaluated_solution(
                    part, task, name, findings[name]
                )
            else:
                lost[name] = why_not_run(self.runners.current)
        return Outcome(task, evaluated, lost)

    def findings(self, part: Part, task: Task) -> dict[str, Finding]:
        """Return solution's name -> what is found about it; one that was not run is left out.

        A solution that hung on another workload is not run again.
        """
        to_run = []
        findings = {}
        for name in task.names:
            if (task.definition_name, name) in self.hung:
                seconds = self.plan.config.timeout_seconds
                label = self.hung[task.definition_name, name]
                log = f"skipped: no result after {seconds} s on {label}, see there; "
                findings[name] = Finding(
                    TIMEOUT, log=f"{log}--timeout takes other seconds"
                )
            else:
                to_run.append(name)
        if not to_run:
            return findings

        for name, finding in self.run(part, task, to_run).items():
            findings[name] = finding
            if finding.status == TIMEOUT:
                self.hung[task.definition_name, name] = task.label
        return findings

    def run(self, part: Part, task: Task, names: list[str]) -> dict[str, Finding]:
        """Run some of a task's solutions. Return name -> what is found; one not run is left out.

        What FIB's runner finds is checked by a second look. Raises whatever the runner raises.
        """
        runner = self.runners.runner_for(part, task)
        solutions = {name: part.solutions[name] for name in names}
        results = runner.run_workload(
            part.definition,
            task.workload,
            list(solutions.values()),
            self.plan.config,
            part.root,
        )
        by_name = {}
        for name, packed in solutions.items():
            # results have the names under which it is packed
            if packed.name in results:
                by_name[name] = results[packed.name]
        if isinstance(runner, IsolatedRunner):  # not FIB's: these are findings already
            return by_name

        findings = {}
        for name, evaluation in by_name.items():
            findings[name] = Finding.by_fib(evaluation)
        return findings | self.second_look.changed_findings(part, task, findings)

    def evaluated_solution(
        self, part: Part, task: Task, name: str, finding: Finding
    ) -> EvaluatedSolution:
        """Return a solution's trace, reasons and log, from what is found about it."""
        packed = part.solutions[name]
        log = readable_log(finding.log)
        reasons = finding.sentences
        trace_log = []  # what was printed is kept only for a solution that failed
        if finding.status != PASSED:
            origins = shown_paths(part, name)
            log = frames.with_shown_paths(log, origins)
            trace_log.append(log)
            reasons = reasons or why_failed(finding.status, log, origins)

        reasons = tuple(cut_line(printable(reason), MAX_REASON) for reason in reasons)
        if finding.sentences:  # any other reasons are from the log
            trace_log += [HEADING, *reasons]
        trace = self.trace(task, packed, finding, "\n".join(trace_log))
        return EvaluatedSolution(trace, reasons, log.strip())

    def trace(self, task: Task, packed: Solution, finding: Finding, log: str) -> Trace:
        """Return a finding as a FIB trace, with its provenance. log: kept from its end."""
        short_log = FOLDERS.sub("", log)[-MAX_LOG:]
        evaluation = fib.make_eval(
            finding.status,
            self.device,
            None,
            finding.correctness,
            finding.performance,
            short_log,
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
        """Return the provenance of a solution's figures, the same for all of its workloads."""
        key = f"{packed.definition} {packed.name}"
        if key not in self.provenances:
            self.provenances[key] = provenance.measured_here(
                self.device,
                **source_hashes(packed),
                packages=provenance.packages(tuple(packed.spec.dependencies)),
                host=self.host,
                tolerance=str(self.plan.tolerance),
                protocol=self.plan.protocol,
                command=self.plan.command,
            )
        return self.provenances[key]


def why_not_run(runner: fib.Runner) -> str:
    """Return one line on why a solution was not run. runner: the one that left it out."""
    return reference_fault(runner.fault) if runner.fault else NOT_RUN


def reference_fault(error: Exception) -> str:
    """Return one line on why the reference did not run. error: what a runner has raised."""
    line = printable(first_line(error)).removeprefix("RuntimeError: ")
    reason = cut_line(line, MAX_REASON)
    if reason.startswith("the reference "):
        return reason
    return f"the reference did not run: {reason}"


def shown_paths(part: Part, name: str) -> dict[str, PurePosixPath]:
    """Return path in a packed solution -> the path by which the user knows the file: in the
    repository, or for a third-party solution below its name.
    """
    if name not in part.third_party:
        return pack.repository_paths(name)
    sources = part.solutions[name].sources
    return {source.path: PurePosixPath(name, source.path) for source in sources}


def why_failed(
    status: EvaluationStatus, log: str, origins: frames.Origins
) -> list[str]:
    """Return lines on why a solution failed: the error that its log ends with, or how its process
    ended; and where in its sources that was.

    log: with the solution's files named as in `origins`, path in the packed solution -> shown.
    """
    last_line = log.strip().splitlines()[-1:]
    if status == TIMEOUT:
        return last_line + frames.hang_lines(log, origins)

    if fib.ENDED in log:
        printed, _, how = log.rpartition(fib.ENDED)
        _, *places = frames.error_lines(
            printed, origins
        )  # not the error, but where it was
        return [fib.ENDED + how.strip(), *places]
    if status in RAISED:
        return frames.error_lines(log, origins)
    return last_line

"""A second look at our solutions on a GPU, after FIB has evaluated them.

FIB compares outputs in the process that runs the solutions, which a faulty one may have spoilt.
Here each solution is called once more, on a fresh input, in a process of isolation/: its output
leaves that process and is compared in this one.
"""

from collections.abc import Iterator
from dataclasses import replace

from flashinfer_bench import EvaluationStatus

from moebench.core.errors import first_line
from moebench.judging import fib
from moebench.judging.isolation.comparison import Finding
from moebench.judging.isolation.runner import IsolatedRunner
from moebench.judging.plan import Part, Plan, Task

PASSED = EvaluationStatus.PASSED
ON_FRESH_INPUT = "on a fresh input, compared where no solution has run"
UNSTEADY = (
    "this time the output is within the tolerance: does it differ from run to run?"
)


class SecondLook:
    """Calls every solution that passed once more, and for a diagnosis also one that is wrong: the
    first time that it is, or with the plan's `verbose` each time.

    diagnosed: names of solutions that were wrong before.
    """

    def __init__(self, plan: Plan, device: str):
        self.plan = plan
        self.device = device
        self.runner: IsolatedRunner | None = None
        self.diagnosed: set[str] = set()

    def close(self) -> None:
        if self.runner:
            self.runner.close()

    def changed_findings(
        self, part: Part, task: Task, findings: dict[str, Finding]
    ) -> dict[str, Finding]:
        """Return solution's name -> its finding after the second look, where it had one.

        findings: FIB's, by name.
        """
        wanted = [name for name in findings if self.is_wanted(name, findings[name])]
        if not wanted or not fib.is_elementwise(part.definition):
            return {}

        changed = {}
        try:
            for name, again in zip(
                wanted, self.look_again(part, task, wanted), strict=True
            ):
                changed[name] = after_look(findings[name], again)
        except Exception as error:  # of the reference, out of memory for instance
            reason = first_line(error)
            for name in wanted:
                changed.setdefault(name, without_look(findings[name], reason))
        return changed

    def look_again(self, part: Part, task: Task, names: list[str]) -> Iterator[Finding]:
        """Return what is found about each solution on a fresh input.

        Raises as `IsolatedRunner.look_again`.
        """
        if self.runner is None:
            self.runner = IsolatedRunner(self.device, shared=True)
        solutions = [part.solutions[name] for name in names]
        return self.runner.look_again(
            part.definition, task.workload, solutions, self.plan.config, part.root
        )

    def is_wanted(self, name: str, finding: Finding) -> bool:
        """Whether a solution is looked at again; a wrong one counts as diagnosed from here on."""
        if finding.status == PASSED:
            return True
        if not finding.status.value.startswith("INCORRECT"):
            return False

        first = name not in self.diagnosed
        self.diagnosed.add(name)
        return first or self.plan.verbose


def after_look(by_fib: Finding, again: Finding) -> Finding:
    """Return FIB's finding with the sentences of the second look, or the second if it is worse."""
    has_raised = again.status == EvaluationStatus.RUNTIME_ERROR
    if has_raised and "out of memory" in again.log.lower():
        return without_look(by_fib, "out of memory")

    if by_fib.status == PASSED:
        if again.status == PASSED:  # with sentences on what is odd, if anything is
            return replace(by_fib, sentences=again.sentences)
        if again.status == EvaluationStatus.INCORRECT_NUMERICAL:
            return replace(again, sentences=[*again.sentences, ON_FRESH_INPUT])
        return again
    if again.status == PASSED:
        return replace(by_fib, sentences=[UNSTEADY])
    return replace(by_fib, sentences=again.sentences or again.log.splitlines()[-1:])


def without_look(by_fib: Finding, reason: str) -> Finding:
    """Return FIB's finding with a sentence on why there was no second look."""
    has_passed = by_fib.status == PASSED
    consequence = "it passes, without a second look" if has_passed else "no diagnosis"
    return replace(by_fib, sentences=[f"{consequence}: {reason}"])

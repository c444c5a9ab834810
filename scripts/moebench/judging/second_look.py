"""What FIB's worker has found of our solutions on a GPU, looked at again where none has run.

FIB compares in the process that runs the solutions. Here the outputs of one more, fresh input leave
it, and are compared in this one.
"""

from collections.abc import Iterator
from dataclasses import replace

from flashinfer_bench import EvaluationStatus

from moebench.judging import fib
from moebench.judging.calling import first_line
from moebench.judging.isolation.comparison import Finding
from moebench.judging.isolation.runner import Runner
from moebench.judging.plan import Part, Plan, Task

PASSED = EvaluationStatus.PASSED
ON_FRESH_INPUT = "on a fresh input, compared where no solution has run"
UNSTEADY = "this time the output is within the tolerance: does it differ from run to run?"


class SecondLook:
    """Looks at each solution that passed, and at wrong ones for a diagnosis: at each one's first,
    with verbose at all.
    """

    def __init__(self, plan: Plan, device: str):
        self.plan = plan
        self.device = device
        self.runner: Runner | None = None
        self.diagnosed: set[str] = set()

    def close(self) -> None:
        if self.runner:
            self.runner.close()

    def at(self, part: Part, task: Task, findings: dict[str, Finding]) -> dict[str, Finding]:
        """Return, by name, what replaces findings after a second look."""
        wanted = [name for name in findings if self.is_wanted(name, findings[name])]
        if not wanted or not fib.is_elementwise(part.definition):
            return {}

        replaced = {}
        try:
            for name, look in zip(wanted, self.looks(part, task, wanted), strict=True):
                replaced[name] = seen_again(findings[name], look)
        except Exception as error:  # of the reference, out of memory for instance
            for name in wanted:
                replaced.setdefault(name, not_seen(findings[name], first_line(error)))
        return replaced

    def looks(self, part: Part, task: Task, names: list[str]) -> Iterator[Finding]:
        """Return what is found about each solution on a fresh input. Raises as `Runner.look`."""
        if self.runner is None:
            self.runner = Runner(self.device, shared=True)
        solutions = [part.solutions[name] for name in names]
        return self.runner.look(
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


def seen_again(finding: Finding, look: Finding) -> Finding:
    """Return the finding with what the second look found, which counts if it is worse."""
    raised = look.status == EvaluationStatus.RUNTIME_ERROR
    if raised and "out of memory" in look.log.lower():
        return not_seen(finding, "out of memory")

    sentences = list(look.sentences)
    if finding.status == PASSED:
        if look.status == EvaluationStatus.INCORRECT_NUMERICAL:
            sentences.append(ON_FRESH_INPUT)
        worse = finding if look.status == PASSED else look
        return replace(worse, sentences=sentences)

    if look.status == PASSED:
        sentences = [UNSTEADY]
    return replace(finding, sentences=sentences or look.log.splitlines()[-1:])


def not_seen(finding: Finding, reason: str) -> Finding:
    has_passed = finding.status == PASSED
    consequence = "it passes, without a second look" if has_passed else "no diagnosis"
    return replace(finding, sentences=[f"{consequence}: {reason}"])

"""What FIB's worker has found of our solutions on a GPU, looked at again where none has run.

FIB compares in the process that runs the solutions. Here the outputs of one more, fresh input leave
it, and are compared in this one.
"""

from flashinfer_bench import EvaluationStatus

from moebench.judging import fib
from moebench.judging.calling import first_line
from moebench.judging.isolation.comparison import Finding
from moebench.judging.isolation.runner import Result, Runner
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

    def at(self, part: Part, task: Task, results: dict[str, Result]) -> dict[str, Result]:
        """Return, by name, the results that a second look replaces."""
        wanted = [name for name, result in results.items() if self.is_wanted(name, result)]
        if not wanted or not fib.is_elementwise(part.full):
            return {}
        if self.runner is None:
            self.runner = Runner(self.device, shared=True)

        solutions = [part.solutions[name] for name in wanted]
        looks = self.runner.look(part.full, task.workload, solutions, self.plan.config, part.root)
        replaced = {}
        try:
            for (finding, log), name in zip(looks, wanted, strict=True):
                replaced[name] = seen_again(results[name], finding, log)
        except Exception as error:  # of the reference, out of memory for instance
            for name in wanted:
                replaced.setdefault(name, not_seen(results[name], first_line(error)))
        return replaced

    def is_wanted(self, name: str, result: Result) -> bool:
        """Whether a result is looked at again; a wrong one counts as diagnosed from here on."""
        status = result.evaluation.status
        if status == PASSED:
            return True
        if not status.value.startswith("INCORRECT"):
            return False

        first = name not in self.diagnosed
        self.diagnosed.add(name)
        return first or self.plan.verbose


def seen_again(result: Result, finding: Finding, log: str) -> Result:
    """Return the result with what the second look found, which counts if it is worse."""
    if "out of memory" in log.lower() and finding.status == EvaluationStatus.RUNTIME_ERROR:
        return not_seen(result, "out of memory")

    if result.evaluation.status != PASSED:
        sentences = finding.sentences if finding.status != PASSED else [UNSTEADY]
        return Result(result.evaluation, tuple(sentences or log.splitlines()[-1:]))
    if finding.status == PASSED:
        return Result(result.evaluation, tuple(finding.sentences))

    evaluation = result.evaluation.model_copy(
        update={
            "status": finding.status,
            "correctness": finding.correctness,
            "performance": None,
            "log": log,
        }
    )
    if finding.status != EvaluationStatus.INCORRECT_NUMERICAL:
        return Result(evaluation)
    return Result(evaluation, (*finding.sentences, ON_FRESH_INPUT))


def not_seen(result: Result, why: str) -> Result:
    if result.evaluation.status == PASSED:
        return Result(result.evaluation, (f"it passes, without a second look: {why}",))
    return Result(result.evaluation, (f"no diagnosis: {why}",))

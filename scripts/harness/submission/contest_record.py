"""Whether recorded traces show that a solution passes everything at contest tolerance as it is now."""

from collections import defaultdict

from flashinfer_bench import EvaluationStatus, Solution, Trace, Workload

from harness.evaluation.tolerances import TOLERANCES

CONTEST = str(TOLERANCES["contest"])


def proven_on(solution: Solution, traces: list[Trace], workloads: list[Workload]) -> tuple[str | None, list[str]]:
    """(machine, []) where every workload is PASSED with the solution's current hash on one machine, else (None, why).

    Only traces at contest tolerance count. Of several machines the one with the most passes is spoken of.
    """
    by_machine = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        environment = trace.evaluation.environment
        if trace.solution == solution.name and environment.libs.get("tolerance") == CONTEST:
            by_machine[environment.hardware][trace.workload.uuid].append(trace)
    if not by_machine:
        return None, [f"no trace of {solution.name} at contest tolerance ({CONTEST}); {_how(solution)}"]
    machine, why = min(
        ((name, _shortcomings(solution, found, workloads)) for name, found in by_machine.items()),
        key=lambda item: sum(map(len, item[1].values())),
    )
    if not why:
        return machine, []
    reasons = [
        f"{len(lengths)} of {len(workloads)} workloads {what} on {machine}: T={', '.join(map(str, lengths))}"
        for what, lengths in why.items()
    ]
    return None, [*reasons[:-1], f"{reasons[-1]}; {_how(solution)}"]


def _shortcomings(solution: Solution, found: dict[str, list[Trace]], workloads: list[Workload]) -> dict[str, list[int]]:
    """What is wrong -> token counts of the workloads where it is."""
    why = defaultdict(list)
    for workload in workloads:
        recorded = found.get(workload.uuid, [])
        current = [t for t in recorded if t.evaluation.environment.libs.get("solution_sha1") == solution.hash()]
        if not recorded:
            what = "have no trace at contest tolerance"
        elif not current:
            old = max(recorded, key=lambda t: t.evaluation.timestamp).evaluation.environment.libs.get("solution_sha1")
            what = f"were measured with another source ({(old or 'unknown')[:7]}, now {solution.hash()[:7]})"
        else:
            status = max(current, key=lambda t: t.evaluation.timestamp).evaluation.status
            if status == EvaluationStatus.PASSED:
                continue
            what = f"are {status.value} at contest tolerance"
        why[what].append(workload.axes["seq_len"])
    return why


def _how(solution: Solution) -> str:
    return f"record with: moebench run --solutions {solution.name} --tolerance contest"

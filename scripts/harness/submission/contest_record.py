"""Whether recorded traces show that a solution passes every workload at contest tolerance as it is now."""

from collections import defaultdict

from flashinfer_bench import EvaluationStatus, Solution, Trace, Workload

from harness.core.provenance import of_trace
from harness.evaluation.tolerances import TOLERANCES
from harness.results.staleness import judge

CONTEST = str(TOLERANCES["contest"])


def proven_on(solution: Solution, traces: list[Trace], workloads: list[Workload]) -> tuple[str | None, list[str]]:
    """(machine, []) where every workload is PASSED with the solution's current hash on one machine, else (None, why).

    Only traces at contest tolerance count. Of several machines the one with the most passes is reported.
    """
    by_machine = defaultdict(lambda: defaultdict(list))
    for trace in sorted(traces, key=lambda trace: trace.evaluation.timestamp):
        provenance = of_trace(trace)
        if trace.solution == solution.name and provenance.tolerance == CONTEST:
            by_machine[provenance.hardware][trace.workload.uuid].append(trace)
    how = f"record with: moebench run --solutions {solution.name} --tolerance contest"
    if not by_machine:
        return None, [f"no trace of {solution.name} at contest tolerance ({CONTEST}); {how}"]
    missing = {machine: failures(solution, found, workloads) for machine, found in by_machine.items()}
    machine = min(missing, key=lambda machine: sum(map(len, missing[machine].values())))
    if not missing[machine]:
        return machine, []
    reasons = [
        f"{len(lengths)} of {len(workloads)} workloads {what} on {machine}: T={', '.join(map(str, lengths))}"
        for what, lengths in missing[machine].items()
    ]
    return None, [*reasons[:-1], f"{reasons[-1]}; {how}"]


def failures(solution: Solution, found: dict[str, list[Trace]], workloads: list[Workload]) -> dict[str, list[int]]:
    """What is wrong -> token counts of the workloads where it is; found: a workload's traces, the newest last."""
    why, now = defaultdict(list), solution.hash()
    for workload in workloads:
        recorded = found.get(workload.uuid, [])
        current = [trace for trace in recorded if judge(of_trace(trace), [now]) == "current"]
        if current and current[-1].evaluation.status == EvaluationStatus.PASSED:
            continue
        if current:
            what = f"are {current[-1].evaluation.status.value} at contest tolerance"
        elif recorded:
            old = of_trace(recorded[-1]).source_sha1 or "unknown"
            what = f"were measured with another source ({old[:7]}, now {now[:7]})"
        else:
            what = "have no trace at contest tolerance"
        why[what].append(workload.axes["seq_len"])
    return why

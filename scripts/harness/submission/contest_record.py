"""Whether recorded traces show that a solution passes every workload at contest tolerance as it is now."""

from collections import defaultdict

from flashinfer_bench import Solution, Trace, Workload

from harness.core.provenance import of_trace
from harness.judging.tolerances import TOLERANCES
from harness.results.staleness import judge

CONTEST = str(TOLERANCES["contest"])


def proven_on(
    solution: Solution, traces: list[Trace], workloads: list[Workload], command: str
) -> tuple[str | None, list[str]]:
    """(machine, []) where every workload is PASSED with the solution's current hash on one machine, else (None, why).

    command: what records a missing trace. Only traces at contest tolerance count. Of several machines the one with the
    most passes is reported.
    """
    now, counting = solution.hash(), defaultdict(dict)  # machine -> workload's uuid -> the trace that counts
    ours = [t for t in traces if (t.solution, t.definition) == (solution.name, solution.definition)]
    own = [trace for trace in ours if of_trace(trace).tolerance == CONTEST]
    # the newest, but none of another source where there is one of the current
    for trace in sorted(own, key=lambda trace: (is_current(trace, now), trace.evaluation.timestamp)):
        counting[of_trace(trace).hardware][trace.workload.uuid] = trace
    how = f"record on a CUDA GPU with: {command}"
    if not own:
        return None, [f"no trace of {solution.name} at contest tolerance ({CONTEST}); {how}"]
    missing = {}
    for machine, found in counting.items():
        missing[machine] = defaultdict(list)
        for workload in workloads:
            if what := fault(found.get(workload.uuid), now):
                missing[machine][what].append(workload.axes["seq_len"])
    machine = min(missing, key=lambda machine: sum(map(len, missing[machine].values())))
    if not missing[machine]:
        return machine, []
    reasons = [
        f"{len(lengths)} of {len(workloads)} workloads {what} on {machine}: T={', '.join(map(str, lengths))}"
        for what, lengths in missing[machine].items()
    ]
    return None, [*reasons[:-1], f"{reasons[-1]}; {how}"]


def is_current(trace: Trace, now: str) -> bool:
    return judge(of_trace(trace), [now]) == "current"


def fault(trace: Trace | None, now: str) -> str | None:
    """What keeps a workload's trace from proving a pass of the source with the hash `now`."""
    if trace is None:
        return "have no trace at contest tolerance"
    if not is_current(trace, now):
        old = of_trace(trace).source_sha1 or "unknown"
        return f"were measured with another source ({old[:7]}, now {now[:7]})"
    status = trace.evaluation.status.value
    return None if status == "PASSED" else f"are {status} at contest tolerance"

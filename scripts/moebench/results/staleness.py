"""Whether a measurement is of the source as it is now, and so what a run need not repeat.

A measurement names the source that it is of by two hashes, of all bytes and of what runs
(packing/fingerprint.py). `judge` compares them with those of the source now; it is the one rule,
for traces and for records of every kind.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from flashinfer_bench import Solution, Trace

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.provenance import Provenance, of_trace
from moebench.judging.plan import Part, Plan
from moebench.operators.layers import cached
from moebench.packing import manifest, pack, solution_files
from moebench.packing.fingerprint import source_hashes
from moebench.packing.manifest import PackingError
from moebench.results import trace_files
from moebench.results.trace_files import Recorded

State = Literal["current", "earlier", "stale", "unknown"]
Sources = dict[tuple[str, str], set[str]]  # (definition, solution) -> its `hashes`


def judge(provenance: Provenance, hashes_now: Collection[str], complete: bool = True) -> State:
    """Return the state of what was measured:

    "current": a hash in the provenance is one of the source now;
    "earlier": so it is, but the provenance says that earlier code was measured, and why it counts;
    "stale": none is;
    "unknown": the provenance has no hash, or there is no source to compare with.

    hashes_now: `hashes` of the source now, none where there is no source. complete: all sources are
    there, so that one that is not is gone, and what was measured of it stale.
    """
    recorded = {provenance.source_sha1, provenance.source_fingerprint} - {None}
    if not recorded:
        return "unknown"
    if not hashes_now and not complete:
        return "unknown"
    if recorded.isdisjoint(hashes_now):
        return "stale"
    return "earlier" if provenance.earlier_code else "current"


def hashes(solution: Solution) -> set[str]:
    """Return FIB's hash of every byte and the fingerprint of what runs."""
    return set(source_hashes(solution).values())


def judge_traces(recorded: list[Recorded]) -> tuple[list[State], list[str]]:
    """Return each trace's state by the sources of its data set, and warnings of unreadable sources.

    A data set without sources, and a file outside any data set, cannot tell that a solution is
    gone.
    """
    sources_of_root: dict[Path | None, Sources] = {}
    warnings = []
    for root in {each.root for each in recorded}:
        sources_of_root[root], faults = sources(root)
        warnings += faults

    states = []
    for each in recorded:
        sources_now = sources_of_root[each.root]
        is_complete = each.root is not None and bool(sources_now)
        key = (each.trace.definition, each.trace.solution)
        hashes_now = sources_now.get(key, ())
        states.append(judge(of_trace(each.trace), hashes_now, is_complete))
    return states, list(dict.fromkeys(warnings))


def judge_record(provenance: Provenance, solution: str) -> State:
    """Return the state of a profile or served record of this repository's solution.

    The record may be of any of the solution's definitions.
    """
    hashes_now = set()
    if solution in manifest.solution_names():
        hashes_now.update(*hashes_of_solution(paths.SOLUTIONS, solution).values())
    return judge(provenance, hashes_now)


def sources(root: Path | None) -> tuple[Sources, list[str]]:
    """Return the sources of a data set as they are now, and warnings of what cannot be read.

    root: this repository or None, a trace file outside any data set: our solutions are packed;
    another data set: the JSON files in its solutions/.
    """
    if root in (None, paths.ROOT):
        sources_now, faults = repository_sources()
    else:
        files = sorted((root / "solutions").rglob("*.json"))
        by_file, faults = solution_files.read(files)
        sources_now = hashes_by_key(by_file.values())
    return sources_now, [f"{fault}; its traces count as stale" for fault in faults]


def repository_sources() -> tuple[Sources, list[str]]:
    """Return this repository's sources, and why any cannot be packed, a line for each."""
    sources_now = {}
    faults = []
    for name in manifest.solution_names():
        try:
            sources_now |= hashes_of_solution(paths.SOLUTIONS, name)
        except PackingError as error:
            faults.append(str(error))
    return sources_now, faults


@cached  # no command edits a solution, and a page of documentation asks a hundred times
def hashes_of_solution(folder: Path, solution: str) -> Sources:
    """Return the sources of one solution of this repository. Raises PackingError.

    folder: that of all solutions, paths.SOLUTIONS.
    """
    return hashes_by_key(pack.pack(solution).values())


def hashes_by_key(solutions: Iterable[Solution]) -> Sources:
    """Return the hashes of packed solutions by definition and name."""
    sources_now = {}
    for solution in solutions:
        sources_now[solution.definition, solution.name] = hashes(solution)
    return sources_now


def left_to_run(plan: Plan, resume: bool) -> Plan:
    """Return the plan, or with `resume` what of it is left to evaluate.

    Whatever else is in the files that the plan's traces go to stays there. Raises UserError, before
    anything runs, for a file that holds something else than traces.
    """
    parts = {}
    for name, part in plan.parts.items():
        recorded = traces_in_output(part.path) if part.path else []
        if resume:
            part = part.without(reusable(plan, part, recorded))
        parts[name] = part
    return replace(plan, parts=parts)


def traces_in_output(path: Path) -> list[Trace]:
    """Return the traces in a run's output file. Raises UserError if it holds something else."""
    try:
        return trace_files.load(path)
    except ValueError as error:
        raise UserError(
            f"{path}: has lines that are no traces; fix it, or choose another --output"
        ) from error


def reusable(plan: Plan, part: Part, traces: list[Trace]) -> dict[tuple[str, str], list[Trace]]:
    """Return (workload's uuid, solution) -> the traces that make evaluating it again needless.

    They are of the solution's source as it is now and of the plan's conditions: device, tolerance
    and protocol. A trace that did not pass is one as well: it would fail again.
    """
    traces_to_keep = defaultdict(list)
    for name, packed in part.solutions.items():
        hashes_now = hashes(packed)
        for trace in traces:
            if (trace.solution, trace.definition) != (packed.name, part.definition.name):
                continue
            provenance = of_trace(trace)
            is_current = judge(provenance, hashes_now) == "current"
            if is_current and has_conditions_of(plan, provenance):
                traces_to_keep[trace.workload.uuid, name].append(trace)
    return traces_to_keep


def has_conditions_of(plan: Plan, provenance: Provenance) -> bool:
    """Return whether something was measured on a plan's device, at its tolerance and protocol."""
    measured = (provenance.hardware, provenance.tolerance, provenance.protocol)
    return measured == (plan.device.hardware, str(plan.tolerance), plan.protocol)

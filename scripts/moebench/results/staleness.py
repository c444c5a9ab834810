"""Whether a measurement is of a solution's source as it is now, and so what a run need not repeat.

A measurement holds two hashes of the source that it was made with: of all bytes, and of what runs
(packing/fingerprint.py). `judge` compares them with the hashes of the source now; it is the one
rule, for traces and for records of every kind.

measurements.py calls `judge_traces`, the tables of records `judge_record`, `moebench submit`
`judge`, and `moebench run` calls `left_to_run` for --resume.
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
# (definition, solution) -> `hashes` of the source now
Sources = dict[tuple[str, str], set[str]]


def judge(
    provenance: Provenance, hashes_now: Collection[str], complete: bool = True
) -> State:
    """Return the state of a measurement:

    "current": one of its hashes is one of the source now;
    "earlier": the same, but the provenance says that earlier code was measured, and why it counts;
    "stale": none of its hashes is one of the source now;
    "unknown": it has no hash, or there is no source to compare with.

    hashes_now: `hashes` of the source now, empty where there is no source. complete: whether all
    sources are known: if so, a solution without source was removed, and its measurements are stale.
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

    Of a data set without sources, and of a file outside any data set, not all sources are known.
    """
    sources_of_root = {}
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

    root: the data set, whose sources are the JSON files in solutions/. For this repository, and for
    None, of trace files outside any data set, this repository's solutions are packed.
    """
    if root in (None, paths.ROOT):
        faults = []
        sources_now = {}
        for name in manifest.solution_names():
            try:
                sources_now |= hashes_of_solution(paths.SOLUTIONS, name)
            except PackingError as error:
                faults.append(str(error))
    else:
        files = sorted((root / "solutions").rglob("*.json"))
        by_file, faults = solution_files.read(files)
        sources_now = hashes_by_key(by_file.values())
    return sources_now, [f"{fault}; its traces count as stale" for fault in faults]


@cached  # no command edits a solution, and a page of documentation asks a hundred times
def hashes_of_solution(folder: Path, solution: str) -> Sources:
    """Return the sources of one solution of this repository. Raises PackingError.

    folder: paths.SOLUTIONS, an argument so that another folder's solution is not taken from the
    cache.
    """
    return hashes_by_key(pack.pack(solution).values())


def hashes_by_key(solutions: Iterable[Solution]) -> Sources:
    """Return the hashes of packed solutions by definition and name."""
    sources_now = {}
    for solution in solutions:
        sources_now[solution.definition, solution.name] = hashes(solution)
    return sources_now


def left_to_run(plan: Plan, resume: bool) -> Plan:
    """Return the plan, or with `resume` the part of it that is left to evaluate.

    Raises UserError, before anything runs, where a file that the plan's traces will be added to
    holds something else than traces.
    """
    parts = {}
    for name, part in plan.parts.items():
        recorded = []
        if part.path:
            try:
                recorded = trace_files.read_saved(part.path)
            except ValueError as error:
                raise UserError(
                    f"{part.path}: has lines that are no traces; fix it, or choose another --output"
                ) from error
        if resume:
            part = part.without(reusable(plan, part, recorded))
        parts[name] = part
    return replace(plan, parts=parts)


def reusable(
    plan: Plan, part: Part, traces: list[Trace]
) -> dict[tuple[str, str], list[Trace]]:
    """Return (workload's uuid, solution) -> the traces that make evaluating it again needless.

    Those are traces of the solution's source as it is now, made on the plan's device, at its
    tolerance and by its protocol. One that did not pass counts, too: it would fail again.
    """
    wanted = (plan.device.hardware, str(plan.tolerance), plan.protocol)
    traces_to_keep = defaultdict(list)
    for name, packed in part.solutions.items():
        hashes_now = hashes(packed)
        for trace in traces:
            if (trace.solution, trace.definition) != (
                packed.name,
                part.definition.name,
            ):
                continue
            provenance = of_trace(trace)
            is_current = judge(provenance, hashes_now) == "current"
            measured = (provenance.hardware, provenance.tolerance, provenance.protocol)
            if is_current and measured == wanted:
                traces_to_keep[trace.workload.uuid, name].append(trace)
    return traces_to_keep

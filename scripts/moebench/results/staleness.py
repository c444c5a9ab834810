"""Whether a figure was measured with the source as it is now: the one rule for traces and for
records of every kind.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

from flashinfer_bench import Solution

from moebench.core import paths
from moebench.core.provenance import Provenance, of_trace
from moebench.packing import manifest, pack, solution_files
from moebench.packing.fingerprint import source_of
from moebench.results.trace_files import Recorded

State = Literal["current", "stale", "unknown"]


def sources(root: Path | None) -> tuple[dict[tuple[str, str], set[str]], list[str]]:
    """A data set's sources as they are now: (definition, solution) -> `hashes`, and warnings of
    what cannot be read.

    root: this repository, whose solutions are packed, as those of a trace file outside any data
    set, None; or another.
    """
    if root in (None, paths.ROOT):
        packed, faults = pack.pack_all([])
        solutions = [solution for served in packed.values() for solution in served.values()]
    else:
        found, faults = solution_files.read(sorted((root / "solutions").rglob("*.json")))
        solutions = found.values()
    now = {(solution.definition, solution.name): hashes([solution]) for solution in solutions}
    return now, [f"{fault}; its traces count as stale" for fault in faults]


def hashes(solutions: Iterable[Solution]) -> set[str]:
    """FIB's of every byte and the fingerprint of what runs, of each."""
    return {sha1 for solution in solutions for sha1 in source_of(solution).values()}


def judge(provenance: Provenance, now: Collection[str], complete: bool = True) -> State:
    """The rule: one hash is as now. now: `hashes` of the source; none where it is gone or, unless
    complete, unknown.
    """
    own = {provenance.source_sha1, provenance.source_fingerprint} - {None}
    if not own or not (now or complete):
        return "unknown"
    return "current" if own & {*now} else "stale"


def of_traces(recorded: list[Recorded]) -> tuple[list[State], list[str]]:
    """Of each trace, by the sources of its data set; and warnings of the sources that cannot be
    read.

    A data set without sources, and a file outside any data set, cannot tell that a solution is
    gone.
    """
    known = {root: sources(root) for root in {found.root for found in recorded}}
    states = []
    for found in recorded:
        there, _ = known[found.root]
        now = there.get((found.trace.definition, found.trace.solution), ())
        states.append(
            judge(of_trace(found.trace), now, complete=found.root is not None and bool(there))
        )
    return states, list(dict.fromkeys(line for _, warnings in known.values() for line in warnings))


def of_record(provenance: Provenance, solution: str) -> State:
    """Of a profile or served record of a solution of this repository, in any of its definitions."""
    there = solution in manifest.solution_names()
    return judge(provenance, hashes(pack.pack(solution).values()) if there else ())

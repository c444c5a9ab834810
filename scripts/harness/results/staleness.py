"""Whether a figure was measured with the source as it is now: the one rule for traces and for records of every kind."""

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from flashinfer_bench import Solution
from pydantic import ValidationError

from harness.core import paths
from harness.core.provenance import Provenance
from harness.core.schema import first_fault
from harness.packing import manifest, pack
from harness.results.trace_files import Recorded

State = Literal["current", "stale", "unknown"]


def sources(root: Path | None) -> tuple[dict[tuple[str, str], str], list[str]]:
    """A data set's sources as they are now: (definition, solution) -> hash, and warnings of those that cannot be read.

    root: this repository, whose solutions are packed; another data set, with Solution files; None: a trace file
    outside any, taken to be of this repository's solutions.
    """
    solutions, warnings = [], []
    if root in (None, paths.ROOT):
        for name in manifest.solution_names():
            try:
                solutions += pack.pack(name).values()
            except manifest.PackingError as error:
                warnings.append(f"{error}; its traces count as stale")
    else:
        for file in sorted((root / "solutions").rglob("*.json")):
            try:
                solutions.append(Solution.model_validate_json(file.read_bytes()))
            except ValidationError as error:
                warnings.append(f"{file}: not a FIB Solution: {first_fault(error, 'file')}; its traces count as stale")
    return {(solution.definition, solution.name): solution.hash() for solution in solutions}, warnings


def judge(provenance: Provenance, hashes: Collection[str], complete: bool = True) -> State:
    """The rule. hashes: what the source may hash to now; none where it is gone or, unless complete, not known."""
    if provenance.source_sha1 is None or not (hashes or complete):
        return "unknown"
    return "current" if provenance.source_sha1 in hashes else "stale"


def of_traces(recorded: list[Recorded]) -> tuple[list[State], list[str]]:
    """Of each trace, by the sources of its data set; and warnings of the sources that cannot be read.

    A data set without sources, and a file outside any data set, cannot tell that a solution is gone.
    """
    known = {root: sources(root) for root in {found.root for found in recorded}}
    states = []
    for found in recorded:
        hashes, _ = known[found.root]
        now = hashes.get((found.trace.definition, found.trace.solution))
        states.append(judge(found.provenance, [now] if now else [], complete=found.root is not None and bool(hashes)))
    return states, list(dict.fromkeys(line for _, warnings in known.values() for line in warnings))


def of_record(provenance: Provenance, solution: str) -> State:
    """Of a profile or served record of a solution of this repository, in any of its definitions."""
    there = solution in manifest.solution_names()
    return judge(provenance, {packed.hash() for packed in pack.pack(solution).values()} if there else ())


def changed(provenance: Provenance, sources: dict[str, str], definition: str) -> list[str]:
    """A line that names those of a record of several that are stale, or nothing. sources: packed name -> hash."""
    records = {name: provenance.model_copy(update={"source_sha1": sha1}) for name, sha1 in sources.items()}
    stale = [n for n, one in records.items() if of_record(one, manifest.folder_name(n, definition)) == "stale"]
    return [f"stale, as the source has changed since: {', '.join(stale)}"] if stale else []

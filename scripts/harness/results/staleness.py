"""Whether a figure was measured with the source as it is now: the one rule for traces and for records of every kind."""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from flashinfer_bench import Solution
from pydantic import ValidationError

from harness.core import paths
from harness.core.provenance import Provenance
from harness.packing import manifest, pack

State = Literal["current", "stale", "unknown"]


@dataclass(frozen=True)
class Sources:
    """A data set's sources as they are now.

    hashes: (definition, solution) -> hash. complete: whether a solution that is not among them is gone; a data set
    without sources, and a file outside any data set, cannot tell. warnings: sources that cannot be read.
    """

    hashes: dict[tuple[str, str], str]
    complete: bool
    warnings: list[str] = field(default_factory=list)


def sources(root: Path | None) -> Sources:
    """This repository's solutions, packed; another data set's Solution files; None: a file outside any data set."""
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
                warnings.append(f"{file}: not a FIB Solution: {error.errors()[0]['msg']}; its traces count as stale")
    hashes = {(solution.definition, solution.name): solution.hash() for solution in solutions}
    return Sources(hashes, complete=root is not None and bool(hashes), warnings=warnings)


def judge(provenance: Provenance, hashes: Collection[str], complete: bool = True) -> State:
    """The rule. hashes: what the source may hash to now; none where it is gone or, unless complete, not known."""
    if provenance.source_sha1 is None or not (hashes or complete):
        return "unknown"
    return "current" if provenance.source_sha1 in hashes else "stale"


def of_trace(provenance: Provenance, definition: str, solution: str, known: Sources) -> State:
    """Of a trace; known: `sources` of its data set, which are read once for all of its traces."""
    now = known.hashes.get((definition, solution))
    return judge(provenance, [now] if now else [], known.complete)


def of_record(provenance: Provenance, solution: str) -> State:
    """Of a profile, sweep or launch record of a solution of this repository, in any of its definitions."""
    there = solution in manifest.solution_names()
    return judge(provenance, {packed.hash() for packed in pack.pack(solution).values()} if there else ())


def stages_sha1(stages: Iterable[str]) -> str:
    """Hash of the sources of shared stages (solutions/kernels/<stage>.py): what a tuning record's figures depend on."""
    texts = [(paths.SHARED_STAGES / f"{stage}.py").read_bytes() for stage in stages]
    return hashlib.sha1(b"\0".join(texts)).hexdigest()


def of_stages(provenance: Provenance, stages: Iterable[str]) -> State:
    """Of a tuning record, whose source_sha1 is `stages_sha1` of these stages."""
    return judge(provenance, [stages_sha1(stages)])

"""Which solutions can be run on a geometry on this machine, and why the others cannot."""

from dataclasses import dataclass

from flashinfer_bench import Solution

from harness.operators.catalogue import operator
from harness.packing import eligibility, manifest, pack


@dataclass(frozen=True)
class Selection:
    """solutions: name -> packed solution. skipped: name -> reason. Names are the folders', without a geometry."""

    solutions: dict[str, Solution]
    skipped: dict[str, str]


def select(names: list[str], geometry: str) -> Selection:
    """These solutions, or every one of the geometry's operator; geometry: a key of GEOMETRIES.

    Raises UserError for an unknown solution and for one that cannot be packed.
    """
    hardware = eligibility.here()
    solutions, skipped = {}, {}
    for name in manifest.choose(names or manifest.solutions_of(operator(geometry).geometries)):
        packed = pack.pack(name).get(geometry)
        reason = eligibility.why_skipped(packed, hardware) if packed else "does not serve this definition"
        if reason:
            skipped[name] = reason
        else:
            solutions[name] = packed
    return Selection(solutions, skipped)

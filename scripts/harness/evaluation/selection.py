"""Which solutions can be run on a geometry on this machine, and why the others cannot."""

from dataclasses import dataclass

from flashinfer_bench import Solution

from harness.core.errors import CannotRun
from harness.operators.catalogue import operator
from harness.packing import eligibility, manifest, pack


@dataclass(frozen=True)
class Selection:
    """solutions: name -> packed solution. skipped: name -> reason. Names are the folders', without a geometry.

    slow: solutions that compile for minutes on first use, each with a note that says how long.
    """

    solutions: dict[str, Solution]
    skipped: dict[str, str]
    slow: list[tuple[Solution, str]]

    @property
    def skipped_lines(self) -> list[str]:
        return [f"{name}: SKIPPED: {reason}" for name, reason in self.skipped.items()]


def select(names: list[str], geometry: str) -> Selection:
    """These solutions, or every one of the geometry's operator; geometry: a key of GEOMETRIES.

    Raises UserError for an unknown solution and for one that cannot be packed, CannotRun if all are skipped.
    """
    hardware = eligibility.here()
    selected = Selection({}, {}, [])
    for name in manifest.choose(names or manifest.solutions_of(operator(geometry).geometries)):
        packed = pack.pack(name).get(geometry)
        reason = eligibility.why_skipped(packed, hardware) if packed else "does not serve this definition"
        if reason:
            selected.skipped[name] = reason
            continue
        selected.solutions[name] = packed
        if note := manifest.read_manifest(name).first_use:
            selected.slow.append((packed, note))
    if not selected.solutions:
        raise CannotRun(f"no solution can be run here: {'; '.join(selected.skipped_lines)}")
    return selected

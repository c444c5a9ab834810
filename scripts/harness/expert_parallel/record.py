"""The record of a measurement on several GPUs: JSON Lines, first what it is of, then one line per point."""

from dataclasses import dataclass
from pathlib import Path

from harness.core.provenance import Provenance
from harness.core.schema import Strict, read_record


class Head(Strict):
    """One solution on one number of ranks. geometry: whose layer it is, whatever its local experts.

    link_gb_s: that a GPU's NVLinks send together by NVIDIA's data sheets; None without any, or where nobody tells.
    """

    solution: str
    geometry: str
    ranks: int
    link_gb_s: float | None = None
    provenance: Provenance


class Point(Strict):
    """Tokens a rank, by one way. Bytes: that the rank which sends the most sends to others. ms: of the slowest rank.

    call_ms: chunks -> whole call.
    graph_ms: a whole call in one piece as a CUDA graph, where the way can be one.
    """

    way: str
    sum_in: str
    tokens: int
    there_bytes: int
    back_bytes: int
    there_ms: float
    products_ms: float
    back_ms: float
    call_ms: dict[int, float]
    graph_ms: float | None = None


@dataclass(frozen=True)
class Measured:
    head: Head
    points: list[Point]


def read(path: Path) -> Measured:
    """Raises UserError, with the file's name and the line, for what is no such record."""
    return Measured(*read_record(path, Head, Point, "expert parallelism"))

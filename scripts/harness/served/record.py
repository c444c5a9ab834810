"""The record of `served`: JSON Lines, first what was run, then a line for each solution at each token count."""

from dataclasses import dataclass, field
from pathlib import Path

from harness.core.provenance import Provenance
from harness.core.schema import Strict, read_record

PREFILL = 1024  # tokens in a pass from which on it is called a prefill chunk, below a decode step


class Head(Strict):
    """layers: resident ones; of_model: those of the model, None if no model has this definition.

    sources: solution -> hash of its packed source, so provenance has none. gpu: limits by NVML. commit: of the
    repository, with a + where files differ from it; None outside one.
    """

    definition: str
    layers: int
    of_model: int | None = None
    tokens: list[int]
    sources: dict[str, str]
    gpu: dict[str, int] = {}
    commit: str | None = None
    provenance: Provenance


class Point(Strict):
    """One solution at one token count, over all resident layers.

    bound_ms: sum of the layers' roofline bounds. graph, eager: median ms a pass, of each turn; empty where there was
    none. not_captured: why there is no graph. scratch_mb: peak of torch's allocator in an eager pass, with what the
    solution keeps. joules, sm_mhz: of a replay. matched: share of the last layer's elements within the tolerance.
    error: what was raised, or why the answer is wrong; one line.
    """

    solution: str
    tokens: int
    bound_ms: float
    graph: list[float] = []
    eager: list[float] = []
    not_captured: str | None = None
    scratch_mb: float | None = None
    joules: float | None = None
    sm_mhz: int | None = None
    matched: float | None = None
    error: str | None = None

    @property
    def ms(self) -> float | None:
        """A pass in the best turn: as a graph, or eagerly if it cannot be captured; None if it failed."""
        turns = self.graph or self.eager
        return min(turns) if turns and self.error is None else None


@dataclass(frozen=True)
class Record:
    head: Head
    points: list[Point] = field(default_factory=list)

    @property
    def at(self) -> dict[tuple[str, int], Point]:
        """(solution, tokens) -> its point, of those that have a time."""
        return {(p.solution, p.tokens): p for p in self.points if p.ms is not None}

    @property
    def tokens(self) -> list[int]:
        return sorted({p.tokens for p in self.points})

    @property
    def solutions(self) -> list[str]:
        """Those with a time, as they were given."""
        timed = {name for name, _ in self.at}
        return [name for name in self.head.sources if name in timed]


def read(path: Path) -> Record:
    """Raises UserError, with the file's name and the line, for what is no such record."""
    return Record(*read_record(path, Head, Point, "served"))

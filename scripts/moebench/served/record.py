"""The record of `moebench served`: JSON Lines, first a Head, then a Point for each solution at each
token count. rounds.py makes the points; reports/ read the record by `read_served`.

    {"definition": "moe_fp8_...", "layers": 58, "tokens": [1, 32], "sources": {"NAME": "ee0c"}, ...}
    {"solution": "NAME", "tokens": 1, "bound_ms": 1.9, "graph": [3.01, 2.98, 2.99], ...}
"""

import statistics
from dataclasses import dataclass
from pathlib import Path

from moebench.core.provenance import Provenance
from moebench.core.schema import Strict, read_record
from moebench.models.layer import ModelLayer, layer_of
from moebench.operators import catalogue
from moebench.operators.roofline import EARLIER_CEILINGS, MEASURED_ON


class Head(Strict):
    """What was measured, and how.

    layers: how many were in memory. of_model: how many the model has, None if the definition is of
    no model. sources, fingerprints: solution -> FIB's hash and fingerprint of its source, which
    provenance therefore lacks. ceilings: rates by which the points' bounds divide, as
    roofline.CEILINGS has them for a GPU.
    """

    definition: str
    layers: int
    of_model: int | None = None
    tokens: list[int]
    sources: dict[str, str]
    fingerprints: dict[str, str] = {}
    ceilings: dict[str, float] = EARLIER_CEILINGS
    provenance: Provenance

    @property
    def model_layer(self) -> ModelLayer | None:
        """Return the model's layer that was measured, None where the definition is of no model."""
        return layer_of(catalogue.by_name().get(self.definition))


class Point(Strict, frozen=False):
    """One solution at one token count, over all layers of the head; filled in while it is measured.

    bound_ms: sum of the layers' roofline bounds. graph, eager: median ms of a forward pass in each
    round, of which one is empty. not_captured: why there is no graph. scratch_mb: peak of torch's
    allocator in an eager pass, with memory that the solution keeps. matched: share of the last
    layer's elements within the tolerance. error: what was raised, or why the answer is wrong, in
    one line.
    """

    solution: str
    tokens: int
    bound_ms: float
    graph: list[float] = []
    eager: list[float] = []
    not_captured: str | None = None
    scratch_mb: float | None = None
    matched: float | None = None
    error: str | None = None

    def add_round(self, ms: float) -> None:
        """Add the median ms of a round."""
        times = self.eager if self.not_captured else self.graph
        times.append(ms)

    @property
    def rounds(self) -> list[float]:
        """Return the ms of a pass in each round, by a graph, or eagerly where none could be
        captured; [] if the solution failed.
        """
        return [] if self.error is not None else self.graph or self.eager

    @property
    def ms(self) -> float | None:
        """Return the median of the rounds, None if the solution failed."""
        return statistics.median(self.rounds) if self.rounds else None


@dataclass(frozen=True)
class ServedRecord:
    """What was run, and a point for each solution and token count."""

    head: Head
    points: list[Point]

    def points_at(self, tokens: int) -> list[Point]:
        return [point for point in self.points if point.tokens == tokens]

    def points_in_order(self, tokens: int) -> list[Point | None]:
        """Return the points at a token count in the order of `solutions`, None where there is
        none.
        """
        by_solution = {point.solution: point for point in self.points_at(tokens)}
        return [by_solution.get(name) for name in self.solutions]

    def timed_points(self, tokens: int) -> list[Point]:
        """Return the points at a token count that did not fail, the fastest first."""
        timed = [point for point in self.points_at(tokens) if point.ms]
        return sorted(timed, key=lambda point: point.ms)

    @property
    def tokens(self) -> list[int]:
        """Return the token counts for which there are points, the least first."""
        return sorted({point.tokens for point in self.points})

    @property
    def solutions(self) -> list[str]:
        """Return the solutions for which there are points, in the order of the run."""
        first = {point.solution for point in self.points_at(self.tokens[0])}
        return [name for name in self.head.sources if name in first]

    @property
    def has_bound(self) -> bool:
        """Return whether the points' bounds are of the record's GPU."""
        return self.head.provenance.hardware == MEASURED_ON


def read_served(path: Path) -> ServedRecord:
    """Return the record in a file. Raises UserError for any other."""
    head, points = read_record(path, Head, Point, "served")
    return ServedRecord(head, points)

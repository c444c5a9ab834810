"""The record of `served`: JSON Lines, first what was run, then a line for each solution at each
token count.
"""

import statistics

from moebench.core.provenance import Provenance
from moebench.core.schema import Strict
from moebench.operators.roofline import EARLIER_CEILINGS


class Head(Strict):
    """layers: resident ones; of_model: those of the model, None if no model has this definition.

    ceilings: what the points' bounds divide by, as roofline.CEILINGS. sources, fingerprints:
    solution -> its two hashes, so provenance has none.
    """

    definition: str
    layers: int
    of_model: int | None = None
    tokens: list[int]
    sources: dict[str, str]
    fingerprints: dict[str, str] = {}
    ceilings: dict[str, float] = EARLIER_CEILINGS
    provenance: Provenance


class Point(Strict):
    """One solution at one token count, over all resident layers.

    bound_ms: sum of the layers' roofline bounds. graph, eager: median ms of a forward pass in each
    round. not_captured: why there is no graph. scratch_mb: peak of torch's allocator in an eager
    pass, with what the solution keeps. matched: share of the last layer's elements within the
    tolerance. error: what was raised, or why the answer is wrong; one line.
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

    @property
    def rounds(self) -> list[float]:
        """Return the ms of a pass in each round; none if it failed.

        Those are of a graph, or eager where nothing could be captured.
        """
        return [] if self.error is not None else self.graph or self.eager

    @property
    def ms(self) -> float | None:
        """The median of the rounds, None if it failed."""
        return statistics.median(self.rounds) if self.rounds else None

"""The record of `served`: JSON Lines, first what was run, then a line for each solution at each
token count.
"""

from moebench.core.provenance import Provenance
from moebench.core.schema import Strict


class Head(Strict):
    """layers: resident ones; of_model: those of the model, None if no model has this definition.

    sources, fingerprints: solution -> its two hashes, so provenance has none.
    """

    definition: str
    layers: int
    of_model: int | None = None
    tokens: list[int]
    sources: dict[str, str]
    fingerprints: dict[str, str] = {}
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
    def ms(self) -> float | None:
        """The forward pass in the best round; None if it failed.

        It is a graph's, or eager where nothing could be captured.
        """
        rounds = self.graph or self.eager
        return min(rounds) if rounds and self.error is None else None

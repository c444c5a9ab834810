"""The record of `generate`: JSON Lines, first what was run, then a line for each check and each time."""

from harness.core.provenance import Provenance
from harness.core.schema import Strict


class Head(Strict):
    """moe_layers: beside one dense layer. sources: implementation -> hash of its packed source. versions: of libraries
    that provenance does not name. context: tokens before the decode steps."""

    definition: str
    moe_layers: int
    sources: dict[str, str]
    context: int
    versions: dict[str, str]
    provenance: Provenance


class Line(Strict):
    """Of one implementation of the experts. error: what was raised or is wrong; one line.

    A check of the logits of one prompt of `tokens` has median, worst: relative error of a token's logits against the
    model with bf16 experts; same_token: share of tokens with the same likeliest next one. A time has phase,
    its batch, and ms: a pass in each turn, of a prompt of `tokens` or of one step.
    """

    experts: str
    tokens: int
    batch: int = 1
    phase: str | None = None
    ms: list[float] = []
    median: float | None = None
    worst: float | None = None
    same_token: float | None = None
    error: str | None = None

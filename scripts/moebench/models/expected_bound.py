"""The roofline bound of a layer at a number of tokens, as a mean over routings."""

from dataclasses import dataclass
from statistics import fmean

from moebench.operators.fp8.layer import expert_bytes as fp8_bytes
from moebench.operators.fp8.layer import layer_bound
from moebench.operators.fp8.routed import routing_bytes
from moebench.operators.layers import Sizes, routed_experts
from moebench.operators.routing import trained_router

ROWS = 2048  # tokens that are drawn in all, so that a mean at few tokens is one over many routings
MOST_ROUTINGS = 64


@dataclass(frozen=True)
class ExpectedBound:
    """Means over routings and ranks: the bound in ms, and local experts that have a token."""

    tokens: int
    ms: float
    active: float


def expected_bound(num_tokens: int, sizes: Sizes, expert_bytes: int | None = None) -> ExpectedBound:
    """Return the bound of a layer with top-k given at so many tokens.

    expert_bytes: of an expert's weights and scales; default: in FP8.

    Each routing is drawn as the workloads are, but none is left out, and each rank counts: at one
    token most ranks of many have no expert to read.
    """
    experts = sizes["num_experts"]
    local = routed_experts(sizes)
    moved = routing_bytes(num_tokens, sizes)
    weights = expert_bytes or fp8_bytes(sizes)
    routings = max(1, min(MOST_ROUTINGS, ROWS // num_tokens))

    bounds = []
    for number in range(routings):
        logits, bias = trained_router.draw(f"expected/{num_tokens}/{number}", num_tokens, {}, sizes)
        chosen = trained_router.select(logits, bias, sizes)
        for first in range(0, experts, local):
            counts = trained_router.counts_with_shared(chosen - first, first // local, sizes)
            bounds.append(layer_bound(num_tokens, counts, moved, sizes, weights))

    ms = fmean(bound.ms for bound in bounds)
    active = fmean(bound.active for bound in bounds)
    return ExpectedBound(num_tokens, ms, active)

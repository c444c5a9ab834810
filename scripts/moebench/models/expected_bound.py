"""The roofline bound that a layer can expect at a number of tokens: a mean over routings.

How many experts a batch reaches, and so how many weights are read, differs from routing to routing.
reports/layer_facts.py shows the mean for `moebench model`, predicted.py beside served times.
"""

from dataclasses import dataclass
from statistics import fmean

from moebench.operators import catalogue
from moebench.operators.fp8.routed import TopKGiven
from moebench.operators.layers import Sizes, expert_ranks, routed_experts
from moebench.operators.routing import trained_router

# At few tokens many routings are drawn, so many tokens together, but no more routings than these.
TOKENS_IN_ALL = 2048
MOST_ROUTINGS = 64


@dataclass(frozen=True)
class ExpectedBound:
    """Means over routings and ranks. ms: the bound. active: local experts that have a token."""

    ms: float
    active: float


def expected_bound(
    num_tokens: int, sizes: Sizes, operator: TopKGiven = catalogue.ROUTED
) -> ExpectedBound:
    """Return the bound of a layer with top-k given.

    sizes: on one rank. operator: catalogue.ROUTED, or MXFP4 for weights in that. Routings are drawn
    as those of workloads, but none is left out as untypical, and each rank counts: at one token
    most of many ranks have no expert to read.
    """
    local = routed_experts(sizes)
    bounds = []
    routings = min(MOST_ROUTINGS, TOKENS_IN_ALL // num_tokens)
    for number in range(max(1, routings)):
        seed = f"expected/{num_tokens}/{number}"
        outputs = trained_router.draw(seed, num_tokens, {}, sizes)
        chosen = trained_router.select(outputs, sizes)
        for rank in range(expert_ranks(sizes)):
            on_rank = chosen - rank * local
            counts = trained_router.counts_with_shared(on_rank, rank, sizes)
            bounds.append(operator.bound_of(num_tokens, counts, sizes))

    ms = fmean(bound.ms for bound in bounds)
    active = fmean(bound.active for bound in bounds)
    return ExpectedBound(ms, active)

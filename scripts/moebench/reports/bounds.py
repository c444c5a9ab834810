"""Recorded roofline bounds, which were made with the ceilings of their day, by those of today.

The ceilings only grow, as better readings of the same kind of GPU are recorded.
"""

from moebench.operators import catalogue
from moebench.operators.roofline import CEILINGS, MEASURED_ON, Counts


def of_today(bound: float, ceilings: dict[str, float], definition: str, tokens: int) -> float:
    """Return a recorded bound of MEASURED_ON, in its unit, by today's ceilings.

    ceilings: those that it was made with.
    """
    today = CEILINGS[MEASURED_ON]
    layer_key = catalogue.by_name().get(definition)
    if layer_key is None or ceilings == today:
        return bound
    rate = expected_limit(layer_key, tokens)
    return bound * ceilings[rate] / today[rate]


def expected_limit(layer_key: str, tokens: int) -> str:
    """Return which rate a layer's bound divides by, where its experts are chosen equally often."""
    sizes = catalogue.layer_sizes()[layer_key]
    local_experts = sizes["num_local_experts"]
    share = local_experts / sizes["num_experts"]
    rows = round(tokens * sizes["top_k"] * share)

    active = min(local_experts, rows)
    counts = Counts(rows=rows, tokens=min(tokens, rows), active=active)
    operator = catalogue.operator(layer_key)
    return operator.bound(tokens, counts, layer_key).limit

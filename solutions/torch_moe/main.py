"""The layer in plain torch.

`run` and `run_renorm` call its stages in order; replace them one by one.
"""

import torch

from ..common.host.arguments import (  # their names, shapes and dtypes
    DS_ROUTING,
    RENORM_ROUTING,
    checked,
)
from ..common.host.problem import (  # packing writes the definition's
    CLAMP_AFTER_SILU,
    KEPT_GROUPS,
    NUM_GROUPS,
    SWIGLU_ALPHA,
    SWIGLU_LIMIT,
    SWIGLU_UP_OFFSET,
    TOP_K,
)

BLOCK = 128  # columns, and rows of a weight, that share a scale


def dequantise(values, scales, rows):
    """Return fp32 [R, C] of values [R, C] fp8 and scales [R / rows, C / 128] fp32."""
    by_row = scales.repeat_interleave(rows, 0)
    return values.float() * by_row.repeat_interleave(BLOCK, 1)


def route(logits, bias, factor):
    """Return each expert's weight for each token, [T, E] fp32, zero but for TOP_K of a token."""
    scores = torch.sigmoid(logits)
    biased = scores + bias.float()  # the bias selects, but is not part of the weight

    groups = biased.unflatten(1, (NUM_GROUPS, -1))
    group_scores = groups.topk(2).values.sum(2)
    kept = group_scores.topk(KEPT_GROUPS).indices
    dropped = torch.ones_like(group_scores, dtype=torch.bool)
    dropped = dropped.scatter(1, kept, False)

    selectable = groups.masked_fill(dropped[:, :, None], float("-inf"))
    expert = selectable.flatten(1).topk(TOP_K).indices
    chosen = torch.zeros_like(scores)
    chosen = chosen.scatter(1, expert, scores.gather(1, expert))
    total = chosen.sum(1, keepdim=True) + 1e-20
    return chosen / total * factor


def route_renorm(logits):
    """As `route`, without groups and bias: weights are a softmax over the chosen logits."""
    chosen, expert = logits.float().topk(TOP_K)
    zeros = torch.zeros(logits.shape, device=logits.device)
    return zeros.scatter(1, expert, chosen.softmax(1))


def gemm(x, weights, scales):
    """Return [T, N] fp32 of x [T, K] fp32, weights [N, K] fp8 and scales [N / 128, K / 128]."""
    return x @ dequantise(weights, scales, BLOCK).t()


def swiglu(g):
    """Return s * (up + offset), where s = gate * sigmoid(alpha * gate), of g's halves.

    up, and gate or s, are clamped where there is a limit.
    """
    up, gate = g.chunk(2, dim=1)
    limit = SWIGLU_LIMIT or torch.inf
    if not CLAMP_AFTER_SILU:
        gate = gate.clamp(max=limit)
    s = gate * torch.sigmoid(SWIGLU_ALPHA * gate)
    s = s.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return s * (up + SWIGLU_UP_OFFSET)


def experts(weight, given):
    """Write the local experts' sum into output.

    weight: [T, E_local] fp32, zero where an expert is not chosen. Every token goes through every
    local expert: correct, not fast.
    """
    x = dequantise(given.hidden_states, given.hidden_states_scale.t(), 1)
    y = torch.zeros_like(x)
    for expert in range(weight.shape[1]):
        g = gemm(x, given.gemm1_weights[expert], given.gemm1_weights_scale[expert])
        h = swiglu(g)
        result = gemm(h, given.gemm2_weights[expert], given.gemm2_weights_scale[expert])

        factor = weight[:, expert, None]
        # 0 x NaN is NaN: tokens that did not choose the expert must not see it
        y += torch.where(factor > 0, factor * result, 0)
    given.output.copy_(y)


@checked(DS_ROUTING)
def run(given):
    """Write the layer's result into output [T, H] bf16.

    Raises ValueError for arguments that do not fit DS_ROUTING.
    """
    weight = route(given.routing_logits, given.routing_bias, given.routed_scaling_factor)
    first = given.local_expert_offset
    local = slice(first, first + len(given.gemm1_weights))
    experts(weight[:, local], given)


@checked(RENORM_ROUTING)
def run_renorm(given):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    experts(route_renorm(given.routing_logits), given)

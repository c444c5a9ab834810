"""The layer in plain torch: `run` and `run_renorm` call its stages in order; replace them one by
one.
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
    """values [R, C] fp8, scales [R / rows, C / 128] fp32 -> fp32."""
    return values.float() * scales.repeat_interleave(rows, 0).repeat_interleave(BLOCK, 1)


def route(logits, bias, factor):
    """[T, E] fp32: each expert's weight for each token, zero but for the TOP_K that are chosen."""
    scores = torch.sigmoid(logits)
    groups = (scores + bias.float()).unflatten(
        1, (NUM_GROUPS, -1)
    )  # the bias selects, but is not part of the weight
    kept = groups.topk(2).values.sum(2).topk(KEPT_GROUPS).indices
    open_groups = torch.zeros_like(groups[:, :, 0], dtype=torch.bool).scatter(1, kept, True)
    expert = (
        groups.masked_fill(~open_groups[:, :, None], float("-inf")).flatten(1).topk(TOP_K).indices
    )
    chosen = torch.zeros_like(scores).scatter(1, expert, scores.gather(1, expert))
    return chosen / (chosen.sum(1, keepdim=True) + 1e-20) * factor


def route_renorm(logits):
    """As `route`, without groups and bias: weights are a softmax over the chosen logits."""
    chosen, expert = logits.float().topk(TOP_K)
    return torch.zeros(logits.shape, device=logits.device).scatter(1, expert, chosen.softmax(1))


def gemm(x, weights, scales):
    """x [T, K] fp32, weights [N, K] fp8 with a scale for each 128 x 128 block -> [T, N] fp32."""
    return x @ dequantise(weights, scales, BLOCK).t()


def swiglu(g):
    """s * (up + offset), s = gate * sigmoid(alpha * gate); up, and gate or s, are clamped where
    there is a limit.
    """
    up, gate = g.chunk(2, dim=1)
    limit = SWIGLU_LIMIT or torch.inf
    if not CLAMP_AFTER_SILU:
        gate = gate.clamp(max=limit)
    s = gate * torch.sigmoid(SWIGLU_ALPHA * gate)
    return s.clamp(max=limit) * (up.clamp(-limit, limit) + SWIGLU_UP_OFFSET)


def experts(weight, given):
    """Write the local experts' sum into output. weight [T, E_local] fp32, zero where an expert is
    not chosen.
    """
    x = dequantise(given.hidden_states, given.hidden_states_scale.t(), 1)
    y = torch.zeros_like(x)
    for expert, own in enumerate(
        weight.t()
    ):  # every token through every local expert: correct, not fast
        g = gemm(x, given.gemm1_weights[expert], given.gemm1_weights_scale[expert])
        h = swiglu(g)
        contribution = gemm(h, given.gemm2_weights[expert], given.gemm2_weights_scale[expert])
        y += torch.where(
            own[:, None] > 0, own[:, None] * contribution, 0
        )  # 0 x NaN is NaN: others must not see it
    given.output.copy_(y)


@checked(DS_ROUTING)
def run(given):
    """Write the layer's result into output [T, H] bf16. Raises ValueError for arguments that do not
    fit DS_ROUTING.
    """
    weight = route(given.routing_logits, given.routing_bias, given.routed_scaling_factor)
    first = given.local_expert_offset
    experts(weight[:, first : first + len(given.gemm1_weights)], given)


@checked(RENORM_ROUTING)
def run_renorm(given):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    experts(route_renorm(given.routing_logits), given)

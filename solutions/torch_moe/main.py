"""The FP8 layer in plain torch, to start a solution from.

`run` and `run_renorm` are the entry points, each for one way of routing. They call the stages, the
functions above them, in order; replace those one by one.
"""

import torch

from ..common.host.arguments import (  # names, shapes and dtypes of the entry points' arguments
    DS_ROUTING,
    RENORM_ROUTING,
    checked,
)
from ..common.host.problem import (  # packing writes the values of a definition into this file
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
    """Return the weight of each expert for each token, [T, E] fp32: zero, but for TOP_K of a token.

    logits: [T, E] fp32. bias: [E] bf16. factor: multiplied with the normalised weights.
    """
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
    """As `route`, for renorm routing: weights are a softmax over the logits of the chosen experts.

    logits: [T, E] bf16.
    """
    chosen, expert = logits.float().topk(TOP_K)
    zeros = torch.zeros(logits.shape, device=logits.device)
    return zeros.scatter(1, expert, chosen.softmax(1))


def gemm(x, weights, scales):
    """Return [T, N] fp32 of x [T, K] fp32, weights [N, K] fp8 and scales [N / 128, K / 128]."""
    return x @ dequantise(weights, scales, BLOCK).t()


def swiglu(g):
    """Return h [T, I] fp32 of g [T, 2 I] fp32, whose halves are `up` and `gate`.

    h = s * (up + offset), where s = gate * sigmoid(alpha * gate). Where the definition has a limit,
    up is clamped to it, and gate, or s with CLAMP_AFTER_SILU.
    """
    up, gate = g.chunk(2, dim=1)
    limit = SWIGLU_LIMIT or torch.inf
    if not CLAMP_AFTER_SILU:
        gate = gate.clamp(max=limit)
    s = gate * torch.sigmoid(SWIGLU_ALPHA * gate)
    s = s.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return s * (up + SWIGLU_UP_OFFSET)


def experts(weight, args):
    """Write the weighed sum of the local experts' results into args.output.

    weight: [T, E_local] fp32, zero where a token did not choose an expert. args: the call's
    arguments, as `check_arguments` returns them. Every token goes through every local expert, which
    is correct but not fast.
    """
    x = dequantise(args.hidden_states, args.hidden_states_scale.t(), 1)
    y = torch.zeros_like(x)
    for expert in range(weight.shape[1]):
        g = gemm(x, args.gemm1_weights[expert], args.gemm1_weights_scale[expert])
        h = swiglu(g)
        result = gemm(h, args.gemm2_weights[expert], args.gemm2_weights_scale[expert])

        factor = weight[:, expert, None]
        # 0 x NaN is NaN: tokens that did not choose the expert must not see it
        y += torch.where(factor > 0, factor * result, 0)
    args.output.copy_(y)


@checked(DS_ROUTING)
def run(args):
    """Write the layer's result into output [T, H] bf16.

    Raises ValueError for arguments that do not fit DS_ROUTING.
    """
    weight = route(args.routing_logits, args.routing_bias, args.routed_scaling_factor)
    first = args.local_expert_offset
    local = slice(first, first + len(args.gemm1_weights))
    experts(weight[:, local], args)


@checked(RENORM_ROUTING)
def run_renorm(args):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    experts(route_renorm(args.routing_logits), args)

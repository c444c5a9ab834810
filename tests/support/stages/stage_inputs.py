"""Random arguments of a layer whose choice of experts no rounding can change.

A layer is a definition's sizes by name, with `renorm` and `routed`: see `sizes`.
"""

from functools import lru_cache

import torch
from moebench.operators import catalogue
from random_values import Draw

BLOCK = 128  # weight rows, and columns of any tensor, that share a scale
SMALLEST_GAP = 1e-5  # between the last choice and the next

# Arguments of the layer, in a definition's order.
TOKENS = ["hidden_states", "hidden_states_scale"]
GEMM1 = ["gemm1_weights", "gemm1_weights_scale"]
GEMM2 = ["gemm2_weights", "gemm2_weights_scale"]
ROUTING = [
    "routing_logits",
    "routing_bias",
    "local_expert_offset",
    "routed_scaling_factor",
]


def sizes(layer_key):
    """Return a definition's layer: sizes, whether its routing is renorm, whether top-k is given."""
    return {
        **catalogue.layer_sizes()[layer_key],
        "renorm": layer_key in catalogue.renorm(),
        "routed": layer_key in catalogue.routed(),
    }


def names(layer):
    """Return the names of the layer's inputs, in the definition's order."""
    if layer["routed"]:
        return [
            *TOKENS,
            "topk_ids",
            "topk_weights",
            *GEMM1,
            *GEMM2,
            "local_expert_offset",
        ]
    if layer["renorm"]:
        return ["routing_logits", *TOKENS, *GEMM1, *GEMM2]
    return [*ROUTING[:2], *TOKENS, *GEMM1, *GEMM2, *ROUTING[2:]]


@lru_cache(maxsize=1)
def weights_once(layer_key):
    """Return a definition's weights on the device; those of one are kept, as they are gigabytes."""
    return weights(sizes(layer_key), "cuda")


def weights(layer, device, seed=0):
    """Return random weights, as the layer's arguments by name."""
    draw = Draw(device, seed)
    experts = layer["num_local_experts"]
    hidden = layer["hidden_size"]
    inter = layer["intermediate_size"]

    w13, w13_scale = gemm_weights(draw, experts, 2 * inter, hidden)
    w2, w2_scale = gemm_weights(draw, experts, hidden, inter)
    return {
        "gemm1_weights": w13,
        "gemm1_weights_scale": w13_scale,
        "gemm2_weights": w2,
        "gemm2_weights_scale": w2_scale,
    }


def gemm_weights(draw, experts, columns, depth):
    """Return weights [experts, columns, depth] and scales with which a product is of size 1."""
    weight = draw.small_fp8(experts, columns, depth)
    scale = draw.normal(experts, columns // BLOCK, depth // BLOCK)
    return weight, 2 * depth**-0.5 * scale


def tokens(layer, num_tokens, device, seed=0):
    """Return random tokens and clear logits as the layer's arguments by name.

    With top-k given: their choice as ids of all experts, some slots and tokens without one, some
    experts twice.
    """
    draw = Draw(device, seed)
    local = layer["num_local_experts"] - layer.get("num_shared_experts", 0)
    offset = 0 if local == layer["num_experts"] else local
    logits, bias = clear_logits(layer, num_tokens, draw, offset)
    hidden = layer["hidden_size"]
    x = draw.small_fp8(num_tokens, hidden)
    scale = draw.normal(hidden // BLOCK, num_tokens)

    if layer["routed"]:
        return {
            "hidden_states": x,
            "hidden_states_scale": scale.t().contiguous(),
            "local_expert_offset": offset,
            **routed_choice(layer, logits, draw),
        }
    return {
        "hidden_states": x,
        "hidden_states_scale": scale,
        "local_expert_offset": offset,
        "routing_logits": logits,
        "routing_bias": bias,
        "routed_scaling_factor": 1.0 if layer["renorm"] else 2.5,
    }


def routed_choice(layer, logits, draw):
    """Return the experts of the largest logits as ids, some left out and some twice, and random
    weights.
    """
    ids = logits.topk(layer["top_k"]).indices.to(torch.int32)
    ids[::3, 1] = -1
    ids[1::4, 2] = ids[1::4, 0]
    ids[4::5] = -1
    weight = draw.uniform(*ids.shape).where(ids >= 0, torch.nan)
    return {"topk_ids": ids, "topk_weights": weight}


def token_scales(layer, arguments):
    """Return the scales of x, [T, H / 128]."""
    scales = arguments["hidden_states_scale"]
    return scales if layer["routed"] else scales.t()


# ---- a clear choice ----


def clear_logits(layer, num_tokens, draw, offset):
    """Return logits and bias whose choice of experts is clear, about half of the pairs local."""
    bias = 0.05 * draw.normal(layer["num_experts"])
    bias = bias.bfloat16()
    logits = local_logits(layer, num_tokens, draw, offset)
    while True:
        unclear = ~is_clear(layer, logits, bias)
        num_unclear = int(unclear.sum())
        if num_unclear == 0:
            return logits, bias
        logits[unclear] = local_logits(layer, num_unclear, draw, offset)


def local_logits(layer, num_tokens, draw, offset):
    """Return logits that favour the experts of the rank."""
    logits = draw.normal(num_tokens, layer["num_experts"])
    end = offset + layer["num_local_experts"]
    logits[:, offset:end] += 1.5
    return logits.bfloat16() if layer["renorm"] else logits


def is_clear(layer, logits, bias, in_order=False):
    """Return [T] bool: no two experts or groups are so close where the choice ends that rounding
    decides; in_order: nor two of the chosen experts.
    """
    choice = logits.double()
    if not layer["renorm"]:
        choice = choice.sigmoid() + bias.double()
    num_groups = layer["num_groups"]
    kept_groups = layer["kept_groups"]
    groups = choice.unflatten(1, (num_groups, -1))
    scores = groups.topk(2).values.sum(-1)
    last_kept = scores.topk(kept_groups).values[:, -1:]
    is_closed = scores < last_kept
    open_groups = groups.masked_fill(is_closed[..., None], -torch.inf)

    expert_gaps = gaps_of_largest(open_groups.flatten(1), layer["top_k"])
    smallest = expert_gaps.amin(1) if in_order else expert_gaps[:, -1]
    if kept_groups < num_groups:
        group_gaps = gaps_of_largest(scores, kept_groups)
        smallest = torch.minimum(smallest, group_gaps[:, -1])
    return smallest > SMALLEST_GAP


def gaps_of_largest(values, count):
    """Return [..., count]: by how much each of the largest values of a row exceeds the next."""
    largest = values.topk(count + 1).values
    return largest[:, :-1] - largest[:, 1:]

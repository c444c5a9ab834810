"""One MoE layer: the tokens of a rank and the weights of experts, both random."""

from typing import NamedTuple

import torch
from moebench.operators.catalogue import GEOMETRIES, router
from moebench.operators.fp8_layer import BLOCK
from moebench.operators.moe_fp8_block_scale_routed import router_inside

# Layers with two definitions: one with the router inside, which has a bias, and one behind it.
LAYERS = [
    layer for layer in router_inside().values() if GEOMETRIES[layer]["routing"] == "sigmoid-bias"
]


class Tokens(NamedTuple):
    """A rank's own: x [T, H] fp8, scale [T, H / 128] fp32, logits [T, E] fp32; bias [E] bf16 is the
    router's.

    ids int32 and weights fp32 [T, top_k]: what the model's router makes of logits and bias. counts:
    how many tokens each rank has, which engines agree on before a step.
    """

    x: torch.Tensor
    scale: torch.Tensor
    logits: torch.Tensor
    bias: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    counts: list[int]


def tokens_of(layer: str, counts: list[int], rank: int, device: str) -> Tokens:
    """A rank's tokens, drawn at random, with the experts that the model's router chooses for
    them.
    """
    experts, hidden = GEOMETRIES[layer]["num_experts"], GEOMETRIES[layer]["hidden_size"]
    source = torch.Generator(device).manual_seed(rank)
    bias = (
        0.1
        * torch.randn(
            experts, generator=torch.Generator(device).manual_seed(1000), device=device
        ).bfloat16()
    )
    x = torch.randn(counts[rank], hidden, generator=source, device=device).to(torch.float8_e4m3fn)
    scale = 1 + 2 * torch.rand(counts[rank], hidden // BLOCK, generator=source, device=device)
    logits = torch.randn(counts[rank], experts, generator=source, device=device)
    ids, weights = router(layer)(logits, bias, GEOMETRIES[layer]["routed_scaling_factor"])
    return Tokens(x, scale, logits, bias, ids.to(torch.int32), weights.contiguous(), counts)


def weights_of(layer: str, experts: range, device: str, gate_first: bool) -> list[torch.Tensor]:
    """gemm1_weights, its scale, gemm2_weights, its scale; an expert's are the same whichever rank
    has it.

    gate_first: rows of `gate` before those of `up`, as the routed definitions have them.
    """
    hidden, inner, fp8 = (
        GEOMETRIES[layer]["hidden_size"],
        GEOMETRIES[layer]["intermediate_size"],
        torch.float8_e4m3fn,
    )
    w13 = torch.empty(len(experts), 2, inner, hidden, dtype=fp8, device=device)
    s13 = torch.empty(len(experts), 2, inner // BLOCK, hidden // BLOCK, device=device)
    w2 = torch.empty(len(experts), hidden, inner, dtype=fp8, device=device)
    s2 = torch.empty(len(experts), hidden // BLOCK, inner // BLOCK, device=device)
    for at, expert in enumerate(experts):
        source = torch.Generator(device).manual_seed(1_000_003 + expert)
        for weights, scales, width in ((w13, s13, hidden), (w2, s2, inner)):
            weights[at] = torch.randn(weights.shape[1:], generator=source, device=device)
            scales[at] = width**-0.5 * (
                0.5 + torch.rand(scales.shape[1:], generator=source, device=device)
            )
        if gate_first:
            w13[at], s13[at] = w13[at].view(torch.uint8).flip(0).view(fp8), s13[at].flip(0)
    return [w13.flatten(1, 2), s13.flatten(1, 2), w2, s2]

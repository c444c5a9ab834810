"""One MoE layer: the tokens of a rank and the weights of experts, both random."""

from dataclasses import dataclass

import torch
from moebench.operators import catalogue
from moebench.operators.catalogue import router
from moebench.operators.fp8_layer import BLOCK
from moebench.operators.moe_fp8_block_scale_routed import router_inside

# Layers with two definitions: one with the router inside, which has a bias, and one behind it.
LAYERS = [
    layer
    for layer in router_inside().values()
    if catalogue.geometries()[layer]["routing"] == "sigmoid-bias"
]
BIAS_SEED = 1000  # the same on every rank, whose tokens have the rank's number
FIRST_EXPERT_SEED = 1_000_003


@dataclass(frozen=True)
class Tokens:
    """A rank's own tokens.

    x [T, H] fp8, scale [T, H / 128] fp32, logits [T, E] fp32; bias [E] bf16 is the router's. ids
    int32 and weights fp32 [T, top_k]: what the model's router makes of logits and bias. counts:
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
    """Return a rank's random tokens, with the experts that the router chooses for them."""
    experts = catalogue.geometries()[layer]["num_experts"]
    hidden = catalogue.geometries()[layer]["hidden_size"]
    num_tokens = counts[rank]
    bias_source = torch.Generator(device).manual_seed(BIAS_SEED)
    bias = 0.1 * torch.randn(experts, generator=bias_source, device=device).bfloat16()

    source = torch.Generator(device).manual_seed(rank)
    x = torch.randn(num_tokens, hidden, generator=source, device=device)
    scale = torch.rand(num_tokens, hidden // BLOCK, generator=source, device=device)
    logits = torch.randn(num_tokens, experts, generator=source, device=device)
    ids, weights = router(layer)(
        logits, bias, catalogue.geometries()[layer]["routed_scaling_factor"]
    )
    return Tokens(
        x=x.to(torch.float8_e4m3fn),
        scale=1 + 2 * scale,
        logits=logits,
        bias=bias,
        ids=ids.to(torch.int32),
        weights=weights.contiguous(),
        counts=counts,
    )


def weights_of(layer: str, experts: range, device: str, gate_first: bool) -> list[torch.Tensor]:
    """Return gemm1_weights, its scale, gemm2_weights, its scale.

    An expert's are the same whichever rank has it. gate_first: rows of `gate` before those of
    `up`, as the routed definitions have them.
    """
    count = len(experts)
    hidden = catalogue.geometries()[layer]["hidden_size"]
    inner = catalogue.geometries()[layer]["intermediate_size"]
    fp8 = torch.float8_e4m3fn
    w13 = torch.empty(count, 2, inner, hidden, dtype=fp8, device=device)
    s13 = torch.empty(count, 2, inner // BLOCK, hidden // BLOCK, device=device)
    w2 = torch.empty(count, hidden, inner, dtype=fp8, device=device)
    s2 = torch.empty(count, hidden // BLOCK, inner // BLOCK, device=device)

    for number, expert in enumerate(experts):
        source = torch.Generator(device).manual_seed(FIRST_EXPERT_SEED + expert)
        fill(w13[number], s13[number], hidden, source)
        fill(w2[number], s2[number], inner, source)
        if gate_first:
            swapped = w13[number].view(torch.uint8).flip(0)  # there is no flip of fp8
            w13[number] = swapped.view(fp8)
            s13[number] = s13[number].flip(0)
    return [w13.flatten(1, 2), s13.flatten(1, 2), w2, s2]


def fill(weights: torch.Tensor, scales: torch.Tensor, width: int, source: torch.Generator) -> None:
    """Draw an expert's weights and scales; width: of the rows that they are multiplied with."""
    device = weights.device
    weights.copy_(torch.randn(weights.shape, generator=source, device=device))
    uniform = torch.rand(scales.shape, generator=source, device=device)
    scales.copy_(width**-0.5 * (0.5 + uniform))

"""One MoE layer on several ranks: the experts and tokens of each rank, and the right answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from harness.core.errors import UserError
from harness.operators.catalogue import GEOMETRIES, router
from harness.operators.moe_fp8_block_scale import ROUTED_SCALING_FACTOR

from definitions import moe_fp8_block_scale, moe_fp8_block_scale_routed

BLOCK = moe_fp8_block_scale.BLOCK
KNOWN = moe_fp8_block_scale.GEOMETRIES  # the router, whose scores have a bias, is inside
EXPERTS_AT_ONCE = 32  # whose weights are on the device together while the right answer is computed


@dataclass(frozen=True)
class Layer:
    """Raises UserError for a definition not in KNOWN, and for ranks that do not divide its experts."""

    geometry: str
    ranks: int

    def __post_init__(self):
        if self.geometry not in KNOWN:
            raise UserError(f"--definition: got {self.geometry}, want one of {', '.join(KNOWN)}")
        if self.of["num_experts"] % self.ranks:
            raise UserError(f"ranks: got {self.ranks}, want a divisor of {self.of['num_experts']} experts")

    @property
    def of(self) -> dict:
        return GEOMETRIES[self.geometry]

    @property
    def local(self) -> int:
        """Experts of a rank."""
        return self.of["num_experts"] // self.ranks


@dataclass(frozen=True)
class Tokens:
    """A rank's own: x [T, H] fp8, scale [T, H / 128] fp32, logits [T, E] fp32; bias [E] bf16 is the router's.

    ids int32 and weights fp32 [T, top_k]: what the model's router makes of logits and bias.
    """

    x: torch.Tensor
    scale: torch.Tensor
    logits: torch.Tensor
    bias: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


def tokens_of(layer: Layer, count: int, rank: int, device: str) -> Tokens:
    """So many tokens of a rank, drawn at random, with the experts that the model's router chooses for them."""
    experts, hidden = layer.of["num_experts"], layer.of["hidden_size"]
    source = torch.Generator(device).manual_seed(rank)
    shared = torch.Generator(device).manual_seed(1000)
    bias = 0.1 * torch.randn(experts, generator=shared, device=device).bfloat16()
    x = torch.randn(count, hidden, generator=source, device=device).to(torch.float8_e4m3fn)
    scale = 1 + 2 * torch.rand(count, hidden // BLOCK, generator=source, device=device)
    logits = torch.randn(count, experts, generator=source, device=device)
    ids, weights = router(layer.geometry)(logits, bias, ROUTED_SCALING_FACTOR)
    return Tokens(x, scale, logits, bias, ids.to(torch.int32), weights.contiguous())


def weights_of(layer: Layer, experts: Sequence[int], device: str, gate_first: bool) -> list[torch.Tensor]:
    """gemm1_weights, its scale, gemm2_weights, its scale; an expert's are the same whichever rank has it.

    gate_first: rows of `gate` before those of `up`, as the routed definitions have them.
    """
    hidden, inner, fp8 = layer.of["hidden_size"], layer.of["intermediate_size"], torch.float8_e4m3fn
    w13 = torch.empty(len(experts), 2, inner, hidden, dtype=fp8, device=device)
    s13 = torch.empty(len(experts), 2, inner // BLOCK, hidden // BLOCK, device=device)
    w2 = torch.empty(len(experts), hidden, inner, dtype=fp8, device=device)
    s2 = torch.empty(len(experts), hidden // BLOCK, inner // BLOCK, device=device)
    for at, expert in enumerate(experts):
        source = torch.Generator(device).manual_seed(1_000_003 + expert)
        for weights, scales, width in ((w13, s13, hidden), (w2, s2, inner)):
            weights[at] = torch.randn(weights.shape[1:], generator=source, device=device).to(fp8)
            scales[at] = width**-0.5 * (0.5 + torch.rand(scales.shape[1:], generator=source, device=device))
    if gate_first:
        w13, s13 = w13.view(torch.uint8).flip(1).view(fp8), s13.flip(1)
    return [w13.flatten(1, 2), s13.flatten(1, 2), w2, s2]


def expected(layer: Layer, batches: list[Tokens]) -> list[torch.Tensor]:
    """The whole layer's output for each of these, [T, H] fp32, by the reference, some experts after the others."""
    device = str(batches[0].x.device)
    totals = [torch.zeros(tokens.x.shape, device=device) for tokens in batches]
    for first in range(0, layer.of["num_experts"], EXPERTS_AT_ONCE):
        some = range(first, min(first + EXPERTS_AT_ONCE, layer.of["num_experts"]))
        held = weights_of(layer, some, device, gate_first=True)
        for of, total in zip(batches, totals, strict=True):
            if len(total):
                total += moe_fp8_block_scale_routed.run(of.x, of.scale, of.ids, of.weights, *held, first).float()
    return totals

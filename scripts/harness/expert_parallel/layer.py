"""One layer on N ranks: the experts and tokens of each, and the right answer."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from definitions import moe_fp8_block_scale, moe_fp8_block_scale_routed
from harness.core.errors import UserError
from harness.operators import routing_model
from harness.operators.catalogue import GEOMETRIES, router
from harness.operators.moe_fp8_block_scale import ROUTED_SCALING_FACTOR

BLOCK = moe_fp8_block_scale.BLOCK
EXPERTS_AT_ONCE = 32  # whose weights a check holds


@dataclass(frozen=True)
class Layer:
    """geometry: any of the model's with the router inside; its number of local experts is not used."""

    geometry: str
    ranks: int

    def __post_init__(self):
        if self.geometry not in moe_fp8_block_scale.GEOMETRIES:
            known = ", ".join(moe_fp8_block_scale.GEOMETRIES)
            raise UserError(f"--definition: got {self.geometry!r}, want one with a bias in the router: {known}")
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
    """What lies on one rank: x [T, H] fp8, scale [T, H / 128] fp32, logits [T, E] fp32; and bias [E] bf16.

    ids int32 and weights fp32 [T, top_k] are what an engine's router makes of the last two.
    """

    x: torch.Tensor
    scale: torch.Tensor
    logits: torch.Tensor
    bias: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    def parts(self, chunks: int) -> list["Tokens"]:
        cut = slices(len(self.x), chunks)
        rows = {name: getattr(self, name) for name in ("x", "scale", "logits", "ids", "weights")}
        return [replace(self, **{name: tensor[at] for name, tensor in rows.items()}) for at in cut]


def slices(count: int, chunks: int) -> list[slice]:
    """Nearly equal parts of so many tokens."""
    ends = [count * at // chunks for at in range(chunks + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def tokens_of(layer: Layer, counts: list[int], rank: int, device: str, to_rank: int | None = None) -> Tokens:
    """The rank's tokens of a batch with so many on each; to_rank: whose experts alone are chosen."""
    hidden, first = layer.of["hidden_size"], sum(counts[:rank])
    raised = {}
    if to_rank is not None:
        mine = range(to_rank * layer.local, (to_rank + 1) * layer.local, max(1, layer.local // layer.of["top_k"]))
        raised = {expert: 9.0 if expert in mine else -3.0 for expert in range(layer.of["num_experts"])}
    logits, bias = routing_model.draw("expert-parallel", sum(counts), raised, of=layer.of)
    own = slice(first, first + counts[rank])
    drawn = torch.Generator(device).manual_seed(rank)
    x = torch.randn(counts[rank], hidden, generator=drawn, device=device).to(torch.float8_e4m3fn)
    scale = 1.0 + 2 * torch.rand(counts[rank], hidden // BLOCK, generator=drawn, device=device)
    own_logits = torch.empty(counts[rank], layer.of["num_experts"], device=device)
    own_logits.copy_(torch.from_numpy(logits[own]))  # what is made from an empty array would have strides of 0
    bias = torch.from_numpy(bias).to(device, torch.bfloat16)
    ids, weights = router(layer.geometry)(own_logits, bias, ROUTED_SCALING_FACTOR)
    return Tokens(x, scale, own_logits, bias, ids.to(torch.int32), weights.contiguous())


def weights_of(layer: Layer, experts: Iterable[int], device: str, gate_first: bool) -> list[torch.Tensor]:
    """gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale: an expert's are the same on any rank."""
    hidden, inner = layer.of["hidden_size"], layer.of["intermediate_size"]
    experts = list(experts)

    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(len(experts), *shape, dtype=dtype, device=device)

    fp8, fp32 = torch.float8_e4m3fn, torch.float32
    w13, w2 = empty(2, inner, hidden, dtype=fp8), empty(hidden, inner, dtype=fp8)
    s13 = empty(2, inner // BLOCK, hidden // BLOCK, dtype=fp32)
    s2 = empty(hidden // BLOCK, inner // BLOCK, dtype=fp32)
    for at, expert in enumerate(experts):
        drawn = torch.Generator(device).manual_seed(1_000_003 + expert)
        for weights, scales, width in ((w13, s13, hidden), (w2, s2, inner)):
            weights[at] = torch.randn(weights.shape[1:], generator=drawn, device=device).to(fp8)
            scales[at] = width**-0.5 * (0.5 + torch.rand(scales.shape[1:], generator=drawn, device=device))
    if gate_first:
        w13, s13 = (w13.view(torch.uint8).flip(1).view(fp8), s13.flip(1))
    return [w13.flatten(1, 2), s13.flatten(1, 2), w2, s2]


def expected(layer: Layer, batches: list[Tokens]) -> list[torch.Tensor]:
    """The whole layer's output for each of these, [T, H] fp32, by the reference: a few experts after the other."""
    device = str(batches[0].x.device)
    totals = [torch.zeros(tokens.x.shape, device=device) for tokens in batches]
    for first in range(0, layer.of["num_experts"], EXPERTS_AT_ONCE):
        some = range(first, min(first + EXPERTS_AT_ONCE, layer.of["num_experts"]))
        held = weights_of(layer, some, device, gate_first=True)
        for of, total in zip(batches, totals, strict=True):
            if len(total):
                total += moe_fp8_block_scale_routed.run(of.x, of.scale, of.ids, of.weights, *held, first).float()
    return totals

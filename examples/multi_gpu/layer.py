"""One MoE layer: which part of it a rank has, the weights of that part, and tokens; all random."""

from dataclasses import dataclass

import torch
from moebench.operators.catalogue import layer_sizes, router
from moebench.operators.fp8_layer import BLOCK
from moebench.operators.moe_fp8_block_scale_routed import router_inside

FP8 = torch.float8_e4m3fn


def layers_with_bias() -> list[str]:
    """Return the layers that have two definitions: a router with a bias inside, and none."""
    layers = router_inside().values()
    return [layer for layer in layers if layer_sizes()[layer]["routing"] == "sigmoid-bias"]


LAYERS = layers_with_bias()


@dataclass(frozen=True)
class Share:
    """What a rank has of a layer: some experts, and of these some intermediate columns."""

    layer: str
    experts: range
    columns: range


def part_of(size: int, rank: int, ranks: int) -> range:
    return range(size * rank // ranks, size * (rank + 1) // ranks)


def expert_share(layer: str, rank: int, ranks: int) -> Share:
    """Return a rank's part of a layer whose experts are split: expert parallelism."""
    sizes = layer_sizes()[layer]
    experts = part_of(sizes["num_experts"], rank, ranks)
    return Share(layer, experts, range(sizes["intermediate_size"]))


def width_share(layer: str, rank: int, ranks: int) -> Share:
    """Return a rank's part of a layer whose width is split: tensor parallelism."""
    sizes = layer_sizes()[layer]
    columns = part_of(sizes["intermediate_size"], rank, ranks)
    return Share(layer, range(sizes["num_experts"]), columns)


# ---- tokens ----


@dataclass(frozen=True)
class Tokens:
    """A rank's own tokens, their routing, and how many tokens each rank has.

    Engines tell each other those counts before a step.
    """

    x: torch.Tensor  # [T, H] fp8
    scale: torch.Tensor  # [T, H / 128] fp32
    logits: torch.Tensor  # [T, E] fp32
    bias: torch.Tensor  # [E] bf16, the router's
    ids: torch.Tensor  # [T, top_k] int32: what the model's router makes of logits and bias
    weights: torch.Tensor  # [T, top_k] fp32
    counts: list[int]  # of tokens, by rank


def tokens_of(layer: str, counts: list[int], rank: int, device: str, seed: int = 0) -> Tokens:
    """Return a rank's tokens, drawn at random, with the experts that the model's router chooses."""
    experts = layer_sizes()[layer]["num_experts"]
    hidden = layer_sizes()[layer]["hidden_size"]
    count = counts[rank]
    source = torch.Generator(device).manual_seed(1_000 * seed + rank)
    bias_source = torch.Generator(device).manual_seed(1_000)

    bias = torch.randn(experts, generator=bias_source, device=device).bfloat16() * 0.1
    x = torch.randn(count, hidden, generator=source, device=device).to(FP8)
    scale = 1 + 2 * torch.rand(count, hidden // BLOCK, generator=source, device=device)
    logits = torch.randn(count, experts, generator=source, device=device)
    return routed_tokens(layer, x, scale, logits, bias, counts)


def routed_tokens(layer, x, scale, logits, bias, counts) -> Tokens:
    """Return tokens with the experts that the model's router chooses by these logits."""
    ids, weights = router(layer)(logits, bias, layer_sizes()[layer]["routed_scaling_factor"])
    return Tokens(x, scale, logits, bias, ids.to(torch.int32), weights.contiguous(), counts)


# ---- weights ----


@dataclass(frozen=True)
class Weights:
    """The weights of a share, as a definition has them."""

    w13: torch.Tensor  # [E_local, 2 I, H] fp8
    w13_scale: torch.Tensor  # [E_local, 2 I / 128, H / 128] fp32
    w2: torch.Tensor  # [E_local, H, I] fp8
    w2_scale: torch.Tensor  # [E_local, H / 128, I / 128] fp32

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.w13, self.w13_scale, self.w2, self.w2_scale


def weights_of(share: Share, device: str, gate_first: bool, seed: int = 0) -> Weights:
    """Return the weights of a share. A weight is the same whichever rank has it.

    gate_first: rows of `gate` before those of `up`, as the routed definitions have them.
    """
    hidden = layer_sizes()[share.layer]["hidden_size"]
    count = len(share.experts)
    width = len(share.columns)
    w13 = torch.empty(count, 2, width, hidden, dtype=FP8, device=device)
    w13_scale = torch.empty(count, 2, width // BLOCK, hidden // BLOCK, device=device)
    w2 = torch.empty(count, hidden, width, dtype=FP8, device=device)
    w2_scale = torch.empty(count, hidden // BLOCK, width // BLOCK, device=device)

    columns = slice(share.columns.start, share.columns.stop)
    blocks = slice(share.columns.start // BLOCK, share.columns.stop // BLOCK)
    for at, expert in enumerate(share.experts):
        source = torch.Generator(device).manual_seed(1_000_003 * (seed + 1) + expert)
        expert_w13, expert_w13_scale = random_matrix(share.layer, "w13", source, device)
        expert_w2, expert_w2_scale = random_matrix(share.layer, "w2", source, device)
        w13[at] = expert_w13[:, columns]
        w13_scale[at] = expert_w13_scale[:, blocks]
        w2[at] = expert_w2[:, columns]
        w2_scale[at] = expert_w2_scale[:, blocks]

    if gate_first:
        w13 = w13.view(torch.uint8).flip(1).view(FP8)
        w13_scale = w13_scale.flip(1)
    return Weights(w13.flatten(1, 2), w13_scale.flatten(1, 2), w2, w2_scale)


def random_matrix(layer, name, source, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an expert's whole W13 [2, I, H] or W2 [H, I], and its scales; both fp32."""
    hidden = layer_sizes()[layer]["hidden_size"]
    width = layer_sizes()[layer]["intermediate_size"]
    shape = (2, width, hidden) if name == "w13" else (hidden, width)
    scale_shape = (*shape[:-2], shape[-2] // BLOCK, shape[-1] // BLOCK)

    values = torch.randn(shape, generator=source, device=device)
    scales = 0.5 + torch.rand(scale_shape, generator=source, device=device)
    return values, scales * shape[-1] ** -0.5

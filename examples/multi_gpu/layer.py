"""One MoE layer: which part of it a rank has, the weights of that part, and tokens; all random."""

from dataclasses import dataclass

import torch
from moebench.operators.catalogue import layer_sizes, router
from moebench.operators.fp8.reference import BLOCK
from moebench.operators.fp8.routed import routed_key, router_inside

FP8 = torch.float8_e4m3fn


def has_bias(layer: str) -> bool:
    """Return whether a layer's router has a bias."""
    return layer_sizes()[layer]["routing"] == "sigmoid-bias"


def layers_without_shared_experts() -> list[str]:
    """Return the layers without shared experts that have two definitions: with the router inside,
    and behind it. Those with shared experts have two as well, and are not split here.
    """
    layers = []
    for layer in router_inside().values():
        sizes = layer_sizes()[layer]
        if not sizes["num_shared_experts"]:
            layers.append(layer)
    return layers


WITHOUT_SHARED_EXPERTS = layers_without_shared_experts()
WITH_BIAS = [layer for layer in WITHOUT_SHARED_EXPERTS if has_bias(layer)]


@dataclass(frozen=True)
class Share:
    """What a rank has of a layer: some experts, and of these some intermediate columns."""

    layer: str
    experts: range
    columns: range
    # whether the rank computes it behind the router; else the router is inside
    is_routed: bool

    @property
    def sizes(self) -> dict:
        """Return the sizes of the whole layer."""
        return layer_sizes()[self.layer]

    @property
    def definition_key(self) -> str:
        """Return the layer key of the definition that the rank computes its part of."""
        return routed_key(self.layer) if self.is_routed else self.layer


def part_of(size: int, rank: int, ranks: int) -> range:
    """Return which of `size` experts or columns a rank has, in the order of the ranks."""
    start = size * rank // ranks
    stop = size * (rank + 1) // ranks
    return range(start, stop)


def expert_share(layer: str, rank: int, ranks: int) -> Share:
    """Return a rank's part of a layer whose experts are split: expert parallelism.

    A router with a bias is inside.
    """
    sizes = layer_sizes()[layer]
    experts = part_of(sizes["num_experts"], rank, ranks)
    columns = range(sizes["intermediate_size"])
    return Share(layer, experts, columns, is_routed=not has_bias(layer))


def width_share(layer: str, rank: int, ranks: int) -> Share:
    """Return a rank's part of a layer whose width is split: tensor parallelism.

    A router with a bias is inside.
    """
    sizes = layer_sizes()[layer]
    experts = range(sizes["num_experts"])
    columns = part_of(sizes["intermediate_size"], rank, ranks)
    return Share(layer, experts, columns, is_routed=not has_bias(layer))


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
    # [T, top_k] int32: what the model's router makes of logits and bias
    ids: torch.Tensor
    weights: torch.Tensor  # [T, top_k] fp32
    counts: list[int]  # of tokens, by rank

    @property
    def inputs(self) -> list[torch.Tensor]:
        """Return the inputs before the weights of a definition with the router inside."""
        scale_by_block = self.scale.t().contiguous()
        return [self.logits, self.bias, self.x, scale_by_block]

    @property
    def routed_inputs(self) -> list[torch.Tensor]:
        """Return the inputs before the weights of a definition behind the router."""
        return [self.x, self.scale, self.ids, self.weights]

    def inputs_of(self, share: Share) -> list[torch.Tensor]:
        """Return the inputs before the weights as a rank's share of the layer takes them."""
        return self.routed_inputs if share.is_routed else self.inputs


def tokens_of(
    layer: str, counts: list[int], rank: int, device: str, seed: int = 0
) -> Tokens:
    """Return a rank's tokens, drawn at random, with the experts that the model's router chooses."""
    sizes = layer_sizes()[layer]
    experts = sizes["num_experts"]
    hidden = sizes["hidden_size"]
    count = counts[rank]

    source = torch.Generator(device)
    random = {"generator": source, "device": device}
    source.manual_seed(1_000)
    bias = torch.randn(experts, **random).bfloat16() * 0.1

    source.manual_seed(1_000 * seed + rank)
    x = torch.randn(count, hidden, **random).to(FP8)
    # between 1 and 3
    scale = 1 + 2 * torch.rand(count, hidden // BLOCK, **random)
    logits = torch.randn(count, experts, **random)
    return routed_tokens(layer, x, scale, logits, bias, counts)


def same_tokens(layer: str, count: int, device: str, seed: int = 0) -> Tokens:
    """Return tokens that are the same on all ranks."""
    return tokens_of(layer, [count], 0, device, seed)


def routed_tokens(layer, x, scale, logits, bias, counts) -> Tokens:
    """Return tokens with the experts that the model's router chooses by these logits."""
    route = router(layer)
    if has_bias(layer):
        scaling_factor = layer_sizes()[layer]["routed_scaling_factor"]
        ids, weights = route(logits, bias, scaling_factor)
    else:
        ids, weights = route(logits)

    return Tokens(
        x=x,
        scale=scale,
        logits=logits,
        bias=bias,
        ids=ids.to(torch.int32),
        weights=weights.contiguous(),
        counts=counts,
    )


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


def weights_of(share: Share, device: str, seed: int = 0) -> Weights:
    """Return the weights of a share. A weight is the same whichever rank has it."""
    hidden = share.sizes["hidden_size"]
    whole_width = share.sizes["intermediate_size"]
    columns = slice(share.columns.start, share.columns.stop)
    blocks = slice(columns.start // BLOCK, columns.stop // BLOCK)

    weights = empty_weights(share, device)
    for at, expert in enumerate(share.experts):
        expert_seed = 1_000_003 * (seed + 1) + expert
        source = torch.Generator(device).manual_seed(expert_seed)
        w13, w13_scale = random_matrix((2, whole_width, hidden), source)
        w2, w2_scale = random_matrix((hidden, whole_width), source)
        if share.is_routed:
            # these definitions have the rows of `gate` before those of `up`
            w13 = w13.flip(0)
            w13_scale = w13_scale.flip(0)

        weights.w13[at] = w13[:, columns].flatten(0, 1)
        weights.w13_scale[at] = w13_scale[:, blocks].flatten(0, 1)
        weights.w2[at] = w2[:, columns]
        weights.w2_scale[at] = w2_scale[:, blocks]
    return weights


def empty_weights(share: Share, device: str) -> Weights:
    """Return memory for the weights of a share."""
    experts = len(share.experts)
    width = len(share.columns)
    hidden = share.sizes["hidden_size"]
    blocks = width // BLOCK
    hidden_blocks = hidden // BLOCK
    return Weights(
        w13=torch.empty(experts, 2 * width, hidden, dtype=FP8, device=device),
        w13_scale=torch.empty(experts, 2 * blocks, hidden_blocks, device=device),
        w2=torch.empty(experts, hidden, width, dtype=FP8, device=device),
        w2_scale=torch.empty(experts, hidden_blocks, blocks, device=device),
    )


def random_matrix(
    shape: tuple[int, ...], source: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix of weights [..., rows, columns], and its scales; both fp32."""
    *first_sizes, rows, columns = shape
    scale_shape = (*first_sizes, rows // BLOCK, columns // BLOCK)
    random = {"generator": source, "device": source.device}

    values = torch.randn(shape, **random)
    scales = 0.5 + torch.rand(scale_shape, **random)
    return values, scales * columns**-0.5

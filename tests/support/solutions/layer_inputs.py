"""Random arguments of a definition's layer, and its reference as a module."""

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import torch
from moebench.operators import catalogue
from random_values import Draw

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BIAS_SIZE = 0.05
WEIGHTS = ("gemm1_weights", "gemm2_weights")
SCALES = ("gemm1_weights_scale", "gemm2_weights_scale")
# in a definition's order
WEIGHTS_AND_SCALES = (
    "gemm1_weights",
    "gemm1_weights_scale",
    "gemm2_weights",
    "gemm2_weights_scale",
)
SCALE_EXPONENTS = (118, 124)  # of int8 arguments
PACKED_E2M1 = (-128, 128)  # two values each
LOCAL_ADVANTAGE = 1.5  # in a logit; about half of the pairs are local then


@dataclass(frozen=True)
class Rank:
    """The experts of one rank."""

    first: int
    num_local: int
    num_experts: int
    top_k: int


def arguments(layer_key, num_tokens, device=DEVICE, seed=0, offset=64):
    """Return the definition's inputs by name, then `output`, full of NaN; no values on "meta".

    offset: the first local expert, where a rank has some of them. About half of the pairs are
    local; of a router's ids some are empty.
    """
    definition = catalogue.definition(layer_key)
    axes = {"seq_len": num_tokens}
    rank = rank_of(catalogue.layer_sizes()[layer_key], offset)
    scalars = {"local_expert_offset": rank and rank.first, "routed_scaling_factor": 2.5}
    draw = Draw(device, seed)

    shapes = definition.get_input_shapes(axes)
    dtypes = definition.torch_input_dtypes
    values = {}
    for name, shape, dtype in zip(definition.inputs, shapes, dtypes, strict=True):
        if shape is None:
            values[name] = scalars[name]
        else:
            tensor = random_tensor(name, shape, dtype, rank, draw)
            values[name] = tensor.to(dtype).contiguous()

    (shape,) = definition.get_output_shapes(axes)
    (dtype,) = definition.torch_output_dtypes
    values["output"] = torch.full(shape, torch.nan, dtype=dtype, device=device)
    return values


def rank_of(sizes, offset):
    """Return the rank whose experts begin at `offset`; None of an operator without experts."""
    if "num_experts" not in sizes:
        return None
    num_experts = sizes["num_experts"]
    num_local = sizes.get("num_local_experts", num_experts)
    num_routed = num_local - sizes.get("num_shared_experts", 0)
    first = 0 if num_routed == num_experts else offset
    return Rank(first, num_local, num_experts, sizes["top_k"])


def random_tensor(name, shape, dtype, rank, draw):
    """Return random values for the argument of that name."""
    if name == "topk_ids":
        ids = expert_ids(shape[0], rank, draw)
        ids += max(rank.first - rank.num_local // 2, 0)
        ids[::3, 2] = -1
        return ids
    if name == "expert_ids":
        return expert_ids(shape[0], rank, draw)
    if name in ("topk_weights", "expert_weights"):
        return draw.normal(*shape).softmax(1)
    if name == "routing_logits":
        return routing_logits(shape, dtype, rank, draw)
    if name == "routing_bias":
        return BIAS_SIZE * draw.normal(*shape)
    if dtype == torch.int8:
        first, end = PACKED_E2M1 if name in WEIGHTS else SCALE_EXPONENTS
        return draw.integers(first, end, *shape, dtype=torch.int64)
    return draw.normal(*shape)


def expert_ids(num_tokens, rank, draw):
    """Return [T, top_k], no expert twice for a token."""
    candidates = min(2 * rank.num_local, rank.num_experts)
    order = draw.order(num_tokens, candidates)
    return order[:, : rank.top_k]


def routing_logits(shape, dtype, rank, draw):
    logits = draw.normal(*shape)
    end = rank.first + rank.num_local
    logits[:, rank.first : end] += LOCAL_ADVANTAGE
    if dtype != torch.bfloat16:
        return logits
    # No two of a token are equal: either expert would be right then.
    distinct = torch.linspace(-2, 2, rank.num_experts, device=draw.device)
    order = logits.argsort(1)
    return distinct.bfloat16()[order]


def halves_swapped(gemm1):
    """Return gemm1's weights or scales [E, 2 I, ...] with gate and up exchanged."""
    first, second = gemm1.view(torch.uint8).chunk(2, 1)
    return torch.cat([second, first], 1).view(gemm1.dtype)


def strided(tensor):
    """Return the same values as every second element of a larger tensor."""
    wide = tensor.new_empty((*tensor.shape, 2))
    return wide[..., 0].copy_(tensor)


def misaligned(tensor):
    """Return the same values, contiguous, an element behind a multiple of 16 bytes."""
    longer = tensor.new_empty(tensor.numel() + 1)
    return longer[1:].view(tensor.shape).copy_(tensor)


@cache
def reference(layer_key):
    """Return what the definition's reference defines: `run`, `route`, ..."""
    names = {}
    exec(catalogue.definition(layer_key).reference, names)
    return SimpleNamespace(**names)

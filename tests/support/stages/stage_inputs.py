"""Random arguments of a layer whose choice of experts no rounding can change.

A layer is a definition's sizes by name, with `renorm` and `routed`: see `sizes`.
"""

from functools import lru_cache

import torch
from moebench.operators import catalogue

BLOCK = 128  # weight rows, and columns of any tensor, that share a scale

# Arguments of the layer, in a definition's order.
TOKENS = ["hidden_states", "hidden_states_scale"]
GEMM1 = ["gemm1_weights", "gemm1_weights_scale"]
GEMM2 = ["gemm2_weights", "gemm2_weights_scale"]
ROUTING = ["routing_logits", "routing_bias", "local_expert_offset", "routed_scaling_factor"]


def sizes(layer_key):
    """Return a definition's layer: sizes, whether its routing is renorm, whether top-k is given."""
    forms = {"renorm": layer_key in catalogue.renorm(), "routed": layer_key in catalogue.routed()}
    return catalogue.layer_sizes()[layer_key] | forms


def names(layer):
    """Return the names of the layer's inputs, in the definition's order."""
    if layer["routed"]:
        return [*TOKENS, "topk_ids", "topk_weights", *GEMM1, *GEMM2, "local_expert_offset"]
    if layer["renorm"]:
        return ["routing_logits", *TOKENS, *GEMM1, *GEMM2]
    return [*ROUTING[:2], *TOKENS, *GEMM1, *GEMM2, *ROUTING[2:]]


@lru_cache(maxsize=1)
def weights_once(layer_key):
    """Return a definition's weights on the device; those of one are kept, as they are gigabytes."""
    return weights(sizes(layer_key), "cuda")


class Draw:
    """Random tensors on a device."""

    def __init__(self, device, seed):
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, *shape):
        return torch.rand(shape, generator=self.generator, device=self.device)

    def fp8(self, *shape):
        """Return bytes of FP8 with magnitudes up to 1.875, so never NaN."""
        options = {"generator": self.generator, "device": self.device, "dtype": torch.uint8}
        whole = torch.randint(0, 256, shape, **options)
        return whole.bitwise_and_(0xBF).view(torch.float8_e4m3fn)


def weights(layer, device, seed=0):
    """Return random weights, as the layer's arguments by name."""
    hidden = layer["hidden_size"]
    inter = layer["intermediate_size"]
    local = layer["num_local_experts"]
    draw = Draw(device, seed)
    w13 = draw.fp8(local, 2 * inter, hidden)
    w13_scale = 2 * hidden**-0.5 * draw.normal(local, 2 * inter // BLOCK, hidden // BLOCK)
    w2 = draw.fp8(local, hidden, inter)
    w2_scale = 2 * inter**-0.5 * draw.normal(local, hidden // BLOCK, inter // BLOCK)
    return dict(zip([*GEMM1, *GEMM2], [w13, w13_scale, w2, w2_scale], strict=True))


def clear_logits(layer, num_tokens, draw, offset):
    """Return logits and bias whose choice of experts is clear, about half of the pairs local."""

    def logits_of(count):
        logits = draw.normal(count, layer["num_experts"])
        logits[:, offset : offset + layer["num_local_experts"]] += 1.5
        return logits.bfloat16() if layer["renorm"] else logits

    bias = (0.05 * draw.normal(layer["num_experts"])).bfloat16()
    logits = logits_of(num_tokens)
    while True:
        unclear = ~is_clear(layer, logits, bias)
        if not unclear.any():
            return logits, bias
        logits[unclear] = logits_of(int(unclear.sum()))


def tokens(layer, num_tokens, device, seed=0):
    """Return random tokens and clear logits as the layer's arguments by name.

    With top-k given: their choice as ids of all experts, some slots and tokens without one, some
    experts twice.
    """
    draw = Draw(device, seed)
    local = layer["num_local_experts"] - layer.get("num_shared_experts", 0)
    offset = 0 if local == layer["num_experts"] else local
    logits, bias = clear_logits(layer, num_tokens, draw, offset)
    x = draw.fp8(num_tokens, layer["hidden_size"])
    scales = draw.normal(layer["hidden_size"] // BLOCK, num_tokens)

    if layer["routed"]:
        ids = logits.topk(layer["top_k"]).indices.to(torch.int32)
        ids[::3, 1] = -1
        ids[1::4, 2] = ids[1::4, 0]
        ids[4::5] = -1
        weight = draw.uniform(*ids.shape).where(ids >= 0, torch.nan)
        routing = {"topk_ids": ids, "topk_weights": weight}
        scales = scales.t().contiguous()
    else:
        factor = 1.0 if layer["renorm"] else 2.5
        routing = {"routing_logits": logits, "routing_bias": bias, "routed_scaling_factor": factor}
    shared = {"hidden_states": x, "hidden_states_scale": scales, "local_expert_offset": offset}
    return shared | routing


def token_scales(layer, arguments):
    """Return the scales of x, [T, H / 128]."""
    scales = arguments["hidden_states_scale"]
    return scales if layer["routed"] else scales.t()


def is_clear(layer, logits, bias):
    """Return [T] bool: no two experts or groups are so close where the choice ends that rounding
    decides.
    """
    if layer["renorm"]:
        groups = 1
        choice = logits.double()
    else:
        groups = layer["num_groups"]
        choice = logits.double().sigmoid() + bias.double()

    gap = torch.full((len(logits),), torch.inf, dtype=torch.float64, device=logits.device)
    if groups > 1:
        kept = layer["kept_groups"]
        grouped = choice.unflatten(1, (groups, -1))
        score = grouped.topk(2, dim=-1).values.sum(-1).sort(descending=True)
        gap = score.values[:, kept - 1] - score.values[:, kept]
        closed = torch.ones_like(score.values, dtype=torch.bool)
        closed.scatter_(1, score.indices[:, :kept], False)
        choice = grouped.masked_fill(closed[..., None], -torch.inf).flatten(1)

    first = choice.topk(layer["top_k"] + 1, dim=-1).values
    return torch.minimum(gap, first[:, -2] - first[:, -1]) > 1e-5

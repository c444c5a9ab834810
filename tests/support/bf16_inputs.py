"""Inputs of the bf16 layer, from a seed."""

import torch

from definitions import moe_bf16

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HERE = "bf16" if DEVICE == "cuda" else "bf16_small"


def distinct_ids(num_tokens, num_experts, top_k, seed=0, device=DEVICE):
    """[T, top_k] int32, all different in a row."""
    generator = torch.Generator(device).manual_seed(seed)
    scores = torch.rand(num_tokens, num_experts, generator=generator, device=device)
    return scores.argsort(1)[:, :top_k].int().contiguous()


def inputs(num_tokens, geometry=HERE, seed=0, device=DEVICE):
    """The definition's five inputs, by name."""
    sizes = moe_bf16.GEOMETRIES[geometry]
    experts, top_k = sizes["num_experts"], sizes["top_k"]
    hidden, inter = sizes["hidden_size"], sizes["intermediate_size"]
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device)

    return {
        "hidden_states": normal(num_tokens, hidden).bfloat16(),
        "expert_ids": distinct_ids(num_tokens, experts, top_k, seed, device),
        "expert_weights": normal(num_tokens, top_k).softmax(1),
        "gemm1_weights": normal(experts, 2 * inter, hidden).bfloat16(),
        "gemm2_weights": normal(experts, hidden, inter).bfloat16(),
    }

"""DeepSeek-V3 of Hugging Face transformers with random weights: one dense layer, then MoE layers; no file is read.

Experts are there twice: in fine-grained FP8, and the same numbers in bf16. All other weights are bf16.
"""

from dataclasses import dataclass

import torch
from harness.operators.catalogue import GEOMETRIES, small_like
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
from transformers.utils.quantization_config import FineGrainedFP8Config

BLOCK = 128  # of a scale, in both directions
DEVIATION = 0.02  # of the experts' weights
HEADS = dict(num_attention_heads=4, num_key_value_heads=4, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64)
# what a definition does not say, for machines without a GPU; by default it is DeepSeek-V3's
SMALL = dict(vocab_size=1024, intermediate_size=1024, q_lora_rank=192, kv_lora_rank=128) | HEADS
BF16 = "grouped_mm"  # transformers' own implementation for experts in bf16


@dataclass(frozen=True)
class Model:
    """lm: DeepseekV3ForCausalLM, in evaluation. fp8, bf16: a module of experts for each MoE layer."""

    lm: torch.nn.Module
    fp8: list[torch.nn.Module]
    bf16: list[torch.nn.Module]

    def use(self, implementation: str) -> None:
        """Compute experts by this implementation: a registered one from their FP8 weights, BF16 from the others."""
        self.lm.set_experts_implementation(implementation)
        chosen = self.bf16 if implementation == BF16 else self.fp8
        for layer, experts in zip(self.lm.model.layers[1:], chosen, strict=True):
            layer.mlp.experts = experts


def build(geometry: str, moe_layers: int, device: str) -> Model:
    """Of a routed definition's sizes, its local experts being all experts.

    A layer of DeepSeek-V3 takes 11.3 GB in FP8 and 22.5 GB in bf16.
    """
    of = GEOMETRIES[geometry]
    config = DeepseekV3Config(
        hidden_size=of["hidden_size"],
        moe_intermediate_size=of["intermediate_size"],
        n_routed_experts=of["num_local_experts"],
        num_experts_per_tok=of["top_k"],
        num_hidden_layers=1 + moe_layers,
        first_k_dense_replace=1,
        num_mtp_layers=0,
        **(SMALL if geometry == small_like(geometry) else {}),
    )
    torch.manual_seed(0)
    with torch.device(device):
        lm = DeepseekV3ForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    layers = lm.model.layers[1:]
    bf16 = [layer.mlp.experts for layer in layers]
    linear = [name for name, module in lm.named_modules() if isinstance(module, torch.nn.Linear)]
    replace_with_fp8_linear(lm, linear, FineGrainedFP8Config(modules_to_not_convert=linear))
    fp8 = [layer.mlp.experts.to_empty(device=device) for layer in layers]
    for ours, theirs in zip(fp8, bf16, strict=True):
        for name in ("gate_up_proj", "down_proj"):
            fill(getattr(ours, name), getattr(ours, f"{name}_scale_inv"), getattr(theirs, name))
    for module in (lm, *fp8, *bf16):
        module.requires_grad_(False)
    return Model(lm, fp8, bf16)


@torch.no_grad()
def fill(weight: torch.Tensor, scale: torch.Tensor, dequantised: torch.Tensor) -> None:
    """Write random numbers into weight [E, N, K] FP8 and scale [E, N/128, K/128], their product into dequantised."""
    scale.copy_(DEVIATION * (0.5 + torch.rand_like(scale)))
    for expert in range(len(weight)):
        weight[expert].copy_(torch.randn(weight.shape[1:], device=weight.device))
        full = weight[expert].float().unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
        dequantised[expert].copy_((full * scale[expert][:, None, :, None]).flatten(2).flatten(0, 1))

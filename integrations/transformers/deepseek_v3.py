"""DeepSeek-V3 of Hugging Face transformers with random weights: one dense layer, then MoE layers;
no file is read.

Experts are there twice: in fine-grained FP8, and the same numbers in bf16. All other weights are
bf16.
"""

import torch
from moebench.operators.catalogue import GEOMETRIES
from moebench.operators.fp8_layer import BLOCK, dequantize
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
from transformers.utils.quantization_config import FineGrainedFP8Config

HEADS = dict(
    num_attention_heads=4,
    num_key_value_heads=4,
    qk_nope_head_dim=64,
    qk_rope_head_dim=32,
    v_head_dim=64,
)
# what a definition does not say, for machines without a GPU; by default it is DeepSeek-V3's
SMALL = dict(vocab_size=1024, intermediate_size=1024, q_lora_rank=192, kv_lora_rank=128) | HEADS
BF16 = "grouped_mm"  # transformers' own implementation for experts in bf16


def build(geometry: str, moe_layers: int, device: str) -> DeepseekV3ForCausalLM:
    """Of a routed definition's sizes, its local experts being all experts. Each `mlp` of MoE has
    both: `fp8`, `bf16`.

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
        **(SMALL if device == "cpu" else {}),
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = (
            DeepseekV3ForCausalLM._from_config(config, dtype=torch.bfloat16)
            .eval()
            .requires_grad_(False)
        )
    bf16 = [layer.mlp.experts for layer in model.model.layers[1:]]
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    replace_with_fp8_linear(model, linear, FineGrainedFP8Config())
    for layer, experts in zip(model.model.layers[1:], bf16, strict=True):
        layer.mlp.bf16, layer.mlp.fp8 = (
            experts,
            layer.mlp.experts.to_empty(device=device).requires_grad_(False),
        )
        for (
            name,
            dequantised,
        ) in experts.named_parameters():  # gate_up_proj and down_proj, [E, N, K]
            weight = getattr(layer.mlp.fp8, name)
            scale = getattr(layer.mlp.fp8, f"{name}_scale_inv")  # [E, N / 128, K / 128]
            scale.copy_(0.02 * (0.5 + torch.rand_like(scale)))
            for expert in range(len(weight)):
                weight[expert] = torch.randn(weight.shape[1:], device=device)
                dequantised[expert] = dequantize(weight[expert], scale[expert], BLOCK)
    return model


def use(model: DeepseekV3ForCausalLM, implementation: str) -> None:
    """Compute experts by this implementation: a registered one from their FP8 weights, BF16 from
    the others.
    """
    model.set_experts_implementation(implementation)
    for layer in model.model.layers[1:]:
        layer.mlp.experts = layer.mlp.bf16 if implementation == BF16 else layer.mlp.fp8

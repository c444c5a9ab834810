"""Build Hugging Face's DeepSeek-V3 with random weights, for main.py: one dense layer, then MoE
layers. No file is read.

Each MoE layer has its experts twice: in FP8 with a scale for each 128 x 128 block, and the same
numbers in bf16. All other weights are bf16.
"""

import torch
from moebench.operators import catalogue
from moebench.operators.fp8.reference import BLOCK, dequantize
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
from transformers.utils.quantization_config import FineGrainedFP8Config

# Sizes outside of the MoE layer, for a small model on machines without a GPU. On a GPU they are
# transformers' defaults, DeepSeek-V3's.
SMALL_SIZES = {
    "vocab_size": 1024,
    "intermediate_size": 1024,
    "q_lora_rank": 192,
    "kv_lora_rank": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}
BF16 = "grouped_mm"  # transformers' own implementation for experts in bf16
MEAN_SCALE = 0.02


def build(layer_key: str, moe_layers: int, device: str) -> DeepseekV3ForCausalLM:
    """Return a model with the sizes of a routed definition, all of whose experts are local.

    The `mlp` of each MoE layer has two more modules, `fp8` and `bf16`: the experts in either dtype.
    A layer of DeepSeek-V3 takes 11.3 GB in FP8 and 22.5 GB in bf16.
    """
    config = config_of(layer_key, moe_layers, device)
    torch.manual_seed(0)
    with torch.device(device):
        model = DeepseekV3ForCausalLM._from_config(config, dtype=torch.bfloat16)
    model = model.eval().requires_grad_(False)

    moe_modules = [
        layer.mlp for layer in model.model.layers[1:]
    ]  # the first one is dense
    bf16_experts = [moe.experts for moe in moe_modules]
    put_fp8_experts(model)

    for moe, experts in zip(moe_modules, bf16_experts, strict=True):
        moe.bf16 = experts
        moe.fp8 = moe.experts.to_empty(device=device).requires_grad_(False)
        fill_experts(moe.fp8, moe.bf16, device)
    return model


def put_fp8_experts(model: DeepseekV3ForCausalLM) -> None:
    """Replace all experts by transformers' own in FP8, without weights; linear layers stay."""
    linear_names = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            linear_names.append(name)
    replace_with_fp8_linear(model, linear_names, FineGrainedFP8Config())


def config_of(layer_key: str, moe_layers: int, device: str) -> DeepseekV3Config:
    """Return transformers' config with a definition's sizes, for one dense layer and MoE layers."""
    sizes = catalogue.layer_sizes()[layer_key]
    return DeepseekV3Config(
        hidden_size=sizes["hidden_size"],
        moe_intermediate_size=sizes["intermediate_size"],
        n_routed_experts=sizes["num_local_experts"],
        num_experts_per_tok=sizes["top_k"],
        num_hidden_layers=1 + moe_layers,
        first_k_dense_replace=1,
        num_mtp_layers=0,
        **(SMALL_SIZES if device == "cpu" else {}),
    )


def fill_experts(fp8: torch.nn.Module, bf16: torch.nn.Module, device: str) -> None:
    """Give the experts in FP8 random weights and scales, and those in bf16 the same numbers."""
    for name, dequantised in bf16.named_parameters():
        # gate_up_proj and down_proj, [E, N, K]
        weight = getattr(fp8, name)
        scale = getattr(fp8, f"{name}_scale_inv")  # [E, N / 128, K / 128]
        factor = 0.5 + torch.rand_like(scale)
        scale.copy_(MEAN_SCALE * factor)

        shape = weight.shape[1:]
        for expert in range(len(weight)):
            weight[expert] = torch.randn(shape, device=device)
            dequantised[expert] = dequantize(weight[expert], scale[expert], BLOCK)


def use(model: DeepseekV3ForCausalLM, implementation: str) -> None:
    """Make the model compute its experts by an implementation that transformers knows by this name.

    It gets the experts in bf16 where the name is BF16, else those in FP8.
    """
    model.set_experts_implementation(implementation)
    for layer in model.model.layers[1:]:
        moe = layer.mlp
        moe.experts = moe.bf16 if implementation == BF16 else moe.fp8

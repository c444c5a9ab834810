"""FP8 block-scale mixture of experts with softmax routing over the chosen experts, all experts on
one GPU.

`run` is the reference that every solution is judged against, layers.toml has the sizes it is judged
at. Only routing and inputs differ from moe_fp8_block_scale, whose experts this file takes. Router
logits are bfloat16; there is no bias.
"""

import torch
from flashinfer_bench import Definition

from definitions import swiglu as activations
from definitions.layers import geometries, has_all_experts, small
from definitions.moe_fp8_block_scale import (
    CONSTRAINTS,
    EXPERT_INPUTS,
    OUTPUT,
    axes,
    dequantize,
    local_experts,
    self_contained,
    size_suffix,
)
from definitions.schema import tensor

TOP_K = 8  # of the first geometry


def route(logits):
    """Choose the TOP_K largest logits per token; return their indices and weights, both [T, TOP_K].

    Weights, float32, are the softmax over the chosen logits alone: the same as a softmax over all
    experts, normalised again over the chosen ones.
    """
    chosen, experts = logits.to(torch.float32).topk(TOP_K, dim=-1)
    return experts, torch.softmax(chosen, dim=-1)


@torch.no_grad()
def run(
    routing_logits,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
):
    """Return output [seq_len, hidden_size] bfloat16: the whole layer.

    Shapes and dtypes of the arguments are in the definition that carries this source.
    """
    experts, weights = route(routing_logits)
    x = dequantize(hidden_states, hidden_states_scale.t(), row_block=1)
    return local_experts(
        x, gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, experts, weights
    )


GEOMETRIES = {key: of for key, of in geometries("renorm").items() if has_all_experts(of)}
SMALL = small("renorm")


def definition_name(geometry):
    """Name of the FIB Definition for a key of GEOMETRIES."""
    return name_of(GEOMETRIES[geometry])


def name_of(of):
    """Name of the FIB Definition of a layer of these sizes."""
    return f"moe_fp8_block_scale_renorm_topk{of['top_k']}_{size_suffix(of)}"


def reference_source(geometry):
    """One self-contained module with `run`, for the `reference` field of the JSON."""
    return self_contained(
        GEOMETRIES[geometry], ("top_k", "experts_at_once"), (dequantize, route, local_experts, run)
    )


def definition(geometry):
    """The flashinfer_bench Definition for a key of GEOMETRIES."""
    of = GEOMETRIES[geometry]
    return Definition(
        name=definition_name(geometry),
        op_type="moe",
        description=(
            "FP8 block-scale mixture of experts with softmax over the top-k logits, all experts on one GPU: route, "
            f"GEMM1, {activations.description(of)}, GEMM2, weighted sum."
        ),
        tags=[
            *(f"model:{model}" for model in of["model"]),
            "quantization:fp8_block_scale",
            "parallelism:ep1",
            f"geometry:{geometry}",
        ],
        axes={name: axis for name, axis in axes(of).items() if name != "num_experts"},
        constraints=[line for line in CONSTRAINTS if "num_experts" not in line.split()],
        inputs={
            "routing_logits": tensor(
                ["seq_len", "num_local_experts"], "bfloat16", "Router output."
            ),
            **EXPERT_INPUTS,
        },
        outputs=OUTPUT,
        reference=reference_source(geometry),
    )

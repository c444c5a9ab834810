"""Qwen3-30B-A3B's mixture of experts in bf16 (W16A16), with the experts of every token given.

This file is the source of truth: `run` below is the reference that every solution is judged
against, `GEOMETRIES` the sizes it is judged at. `moebench data --write` writes FIB's JSON of each
geometry, whose `reference` is the function below.

Nothing here is fast on purpose. Everything is computed in fp32, so that no solution is judged by
another's rounding.
"""

import inspect

import torch
from flashinfer_bench import Definition

from definitions.schema import const, tensor, var


@torch.no_grad()
def run(hidden_states, expert_ids, expert_weights, gemm1_weights, gemm2_weights):
    """Return output [seq_len, hidden_size] bfloat16: each token's experts, weighed and summed.

    Shapes and dtypes of the arguments are in the definition that carries this source. A token names
    an expert at most once. GEMM1's first half is `gate`, its second half `up`.
    """
    num_tokens, hidden_size = hidden_states.shape
    num_experts, _, intermediate_size = gemm2_weights.shape

    x = hidden_states.to(torch.float32)
    output = torch.zeros(num_tokens, hidden_size, dtype=torch.float32, device=x.device)
    for expert in range(num_experts):
        tokens, slot = torch.nonzero(expert_ids == expert, as_tuple=True)
        if tokens.numel() == 0:
            continue
        w13 = gemm1_weights[expert].to(torch.float32)
        w2 = gemm2_weights[expert].to(torch.float32)
        gate, up = x[tokens].matmul(w13.t()).split(intermediate_size, dim=1)
        hidden = torch.nn.functional.silu(gate) * up
        rows = hidden.matmul(w2.t())
        output.index_add_(0, tokens, rows * expert_weights[tokens, slot].unsqueeze(1))
    return output.to(torch.bfloat16)


# Per geometry: its sizes. The keys are unlike those of every other definition of this data set.
GEOMETRIES = {
    "bf16": {"num_experts": 128, "top_k": 8, "hidden_size": 2048, "intermediate_size": 768},
    "bf16_small": {"num_experts": 16, "top_k": 4, "hidden_size": 256, "intermediate_size": 128},
}
SMALL = ("bf16_small",)  # for machines without a GPU


def definition_name(geometry):
    """Name of the FIB Definition for a key of GEOMETRIES."""
    sizes = GEOMETRIES[geometry]
    return f"moe_bf16_topk{sizes['top_k']}_e{sizes['num_experts']}_h{sizes['hidden_size']}_i{sizes['intermediate_size']}"


def reference_source():
    """One self-contained module with `run`, for the `reference` field of the JSON."""
    return "import torch\n\n\n" + inspect.getsource(run)


def definition(geometry):
    """The flashinfer_bench Definition for a key of GEOMETRIES."""
    sizes = GEOMETRIES[geometry]

    return Definition(
        name=definition_name(geometry),
        op_type="moe",
        description=(
            "Mixture of experts with bf16 weights and activations (W16A16), experts given: GEMM1, SwiGLU, GEMM2, "
            "weighted sum over each token's experts."
        ),
        tags=["model:qwen3-30b-a3b", "quantization:none", f"geometry:{geometry}"],
        axes={
            "seq_len": var("Tokens in the batch; 0 is legal."),
            "num_experts": const(
                sizes["num_experts"], "Experts of the layer, all of them held here."
            ),
            "top_k": const(sizes["top_k"], "Experts of a token."),
            "hidden_size": const(sizes["hidden_size"], "Model width."),
            "intermediate_size": const(sizes["intermediate_size"], "Width inside an expert."),
            "gemm1_out_size": const(
                2 * sizes["intermediate_size"], "GEMM1's output: gate, then up."
            ),
        },
        constraints=["gemm1_out_size == 2 * intermediate_size", "top_k <= num_experts"],
        inputs={
            "hidden_states": tensor(["seq_len", "hidden_size"], "bfloat16", "Activations."),
            "expert_ids": tensor(
                ["seq_len", "top_k"],
                "int32",
                "Experts of each token, all different, 0 <= id < num_experts.",
            ),
            "expert_weights": tensor(
                ["seq_len", "top_k"], "float32", "What each expert's result is multiplied with."
            ),
            "gemm1_weights": tensor(
                ["num_experts", "gemm1_out_size", "hidden_size"],
                "bfloat16",
                "First projections: rows of `gate`, then rows of `up`.",
            ),
            "gemm2_weights": tensor(
                ["num_experts", "hidden_size", "intermediate_size"],
                "bfloat16",
                "Second projection.",
            ),
        },
        outputs={
            "output": tensor(
                ["seq_len", "hidden_size"], "bfloat16", "Weighted sum over a token's experts."
            )
        },
        reference=reference_source(),
    )

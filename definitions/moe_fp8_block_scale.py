"""DeepSeek-V3's FP8 block-scale mixture of experts, as one expert-parallel rank computes it.

This file is the source of truth: `run` below is the reference that every solution is judged
against, `GEOMETRIES` the sizes it is judged at. `make definitions` writes FIB's JSON of each geometry,
whose `reference` is assembled from the functions below.

Nothing here is fast on purpose. All weights are dequantised to fp32 first, whether or not a token
needs them, because speed-ups are quoted against exactly that amount of work.
"""

import inspect

import torch
from flashinfer_bench import Definition

from definitions.schema import const, tensor, var

# Routing is fixed by the model and cannot be read off a tensor's shape.
TOP_K = 8
NUM_GROUPS = 8
KEPT_GROUPS = 4
BLOCK = 128


def dequantize(values, scales, row_block):
    """values [..., R, C] fp8 -> fp32, times one scale per row_block x 128 block.

    scales is [..., R / row_block, C / 128] float32 and may hold zeros and negative numbers.
    """
    scales = scales.repeat_interleave(row_block, dim=-2).repeat_interleave(BLOCK, dim=-1)
    return values.to(torch.float32) * scales


def route(logits, bias, routed_scaling_factor):
    """Choose 8 experts per token; return their indices [T, 8] and weights [T, 8] float32.

    The bias helps to select, but the weights come from the scores without it.
    """
    num_tokens, num_experts = logits.shape
    scores = torch.sigmoid(logits.to(torch.float32))
    biased = scores + bias.to(torch.float32)

    groups = biased.view(num_tokens, NUM_GROUPS, num_experts // NUM_GROUPS)
    group_scores = groups.topk(2, dim=-1).values.sum(dim=-1)
    kept = group_scores.topk(KEPT_GROUPS, dim=-1).indices
    closed = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, kept, False)
    candidates = groups.masked_fill(closed.unsqueeze(-1), float("-inf")).flatten(1)

    experts = candidates.topk(TOP_K, dim=-1).indices
    weights = scores.gather(1, experts)
    weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * routed_scaling_factor
    return experts, weights


@torch.no_grad()
def run(
    routing_logits,
    routing_bias,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
    routed_scaling_factor,
):
    """Return output [seq_len, hidden_size] bfloat16: the local experts' share of the layer.

    Shapes and dtypes of the arguments are in the definition that carries this source. The two
    scalars may be Python numbers or tensors of one element.
    """
    num_tokens, hidden_size = hidden_states.shape
    num_local_experts, _, intermediate_size = gemm2_weights.shape

    x = dequantize(hidden_states, hidden_states_scale.t(), row_block=1)
    w13 = dequantize(gemm1_weights, gemm1_weights_scale, row_block=BLOCK)
    w2 = dequantize(gemm2_weights, gemm2_weights_scale, row_block=BLOCK)

    experts, weights = route(routing_logits, routing_bias, float(routed_scaling_factor))
    local = experts - int(local_expert_offset)

    output = torch.zeros(num_tokens, hidden_size, dtype=torch.float32, device=x.device)
    for expert in range(num_local_experts):
        tokens, slot = torch.nonzero(local == expert, as_tuple=True)
        if tokens.numel() == 0:
            continue
        up, gate = x[tokens].matmul(w13[expert].t()).split(intermediate_size, dim=1)
        hidden = torch.nn.functional.silu(gate) * up
        rows = hidden.matmul(w2[expert].t())
        output.index_add_(0, tokens, rows * weights[tokens, slot].unsqueeze(1))
    return output.to(torch.bfloat16)


# Per geometry: what the FIB name ends in, and the sizes that vary. `sizes` adds what all have in common.
GEOMETRIES = {
    "full": {"hidden_size": 7168, "intermediate_size": 2048},
    "small": {"hidden_size": 512, "intermediate_size": 256},
}
NUM_EXPERTS = 256
NUM_LOCAL_EXPERTS = 32
COMMON = {
    "num_experts": NUM_EXPERTS,
    "num_local_experts": NUM_LOCAL_EXPERTS,
    "top_k": TOP_K,
    "num_groups": NUM_GROUPS,
    "kept_groups": KEPT_GROUPS,
}


def sizes(geometry):
    """All sizes of a key of GEOMETRIES."""
    return COMMON | GEOMETRIES[geometry]


def definition_name(geometry):
    """Name of the FIB Definition for a key of GEOMETRIES."""
    size = sizes(geometry)
    return (
        f"moe_fp8_block_scale_ds_routing_topk{size['top_k']}_ng{size['num_groups']}_kg{size['kept_groups']}"
        f"_e{size['num_local_experts']}_h{size['hidden_size']}_i{size['intermediate_size']}"
    )


def reference_source():
    """One self-contained module with `run`, for the `reference` field of the JSON."""
    constants = "\n".join(f"{name} = {globals()[name]}" for name in ("TOP_K", "NUM_GROUPS", "KEPT_GROUPS", "BLOCK"))
    functions = [inspect.getsource(function) for function in (dequantize, route, run)]
    return "\n\n".join(["import torch\n\n" + constants + "\n", *functions])


def definition(geometry):
    """The flashinfer_bench Definition for a key of GEOMETRIES."""
    size = sizes(geometry)
    hidden, intermediate = size["hidden_size"], size["intermediate_size"]

    return Definition(
        name=definition_name(geometry),
        op_type="moe",
        description=(
            "FP8 block-scale mixture of experts with DeepSeek-V3 routing, as seen by one "
            "expert-parallel rank of eight: route, GEMM1, SwiGLU, GEMM2, weighted sum over the "
            "local experts."
        ),
        tags=[
            "model:deepseek-v3",
            "model:deepseek-r1",
            "quantization:fp8_block_scale",
            "parallelism:ep8",
            f"geometry:{geometry}",
        ],
        axes={
            "seq_len": var("Tokens in the batch; 0 is legal."),
            "num_experts": const(size["num_experts"], "Experts of the whole layer."),
            "num_local_experts": const(size["num_local_experts"], "Experts that this rank holds."),
            "hidden_size": const(hidden, "Model width."),
            "intermediate_size": const(intermediate, "Width inside an expert."),
            "gemm1_out_size": const(2 * intermediate, "GEMM1's output: up, then gate."),
            "num_hidden_blocks": const(hidden // BLOCK, "Scale blocks along hidden_size."),
            "num_intermediate_blocks": const(intermediate // BLOCK, "Scale blocks along intermediate_size."),
            "num_gemm1_out_blocks": const(2 * intermediate // BLOCK, "Scale blocks along gemm1_out_size."),
        },
        constraints=[
            "gemm1_out_size == 2 * intermediate_size",
            f"hidden_size == {BLOCK} * num_hidden_blocks",
            f"intermediate_size == {BLOCK} * num_intermediate_blocks",
            f"gemm1_out_size == {BLOCK} * num_gemm1_out_blocks",
            "num_local_experts <= num_experts",
        ],
        inputs={
            "routing_logits": tensor(["seq_len", "num_experts"], "float32", "Router output before the sigmoid."),
            "routing_bias": tensor(["num_experts"], "bfloat16", "Added to the scores for selection only."),
            "hidden_states": tensor(["seq_len", "hidden_size"], "float8_e4m3fn", "Quantised activations."),
            "hidden_states_scale": tensor(
                ["num_hidden_blocks", "seq_len"],
                "float32",
                "One scale per token and 128 columns; note that the block axis comes first.",
            ),
            "gemm1_weights": tensor(
                ["num_local_experts", "gemm1_out_size", "hidden_size"],
                "float8_e4m3fn",
                "First projections: rows of `up`, then rows of `gate`.",
            ),
            "gemm1_weights_scale": tensor(
                ["num_local_experts", "num_gemm1_out_blocks", "num_hidden_blocks"],
                "float32",
                "One scale per 128 x 128 block; any sign.",
            ),
            "gemm2_weights": tensor(
                ["num_local_experts", "hidden_size", "intermediate_size"],
                "float8_e4m3fn",
                "Second projection.",
            ),
            "gemm2_weights_scale": tensor(
                ["num_local_experts", "num_hidden_blocks", "num_intermediate_blocks"],
                "float32",
                "One scale per 128 x 128 block; any sign.",
            ),
            "local_expert_offset": tensor(None, "int32", "Global index of this rank's first expert."),
            "routed_scaling_factor": tensor(None, "float32", "Multiplies the normalised routing weights."),
        },
        outputs={
            "output": tensor(
                ["seq_len", "hidden_size"],
                "bfloat16",
                "Weighted sum over local experts; zero where a token has none.",
            )
        },
        reference=reference_source(),
    )

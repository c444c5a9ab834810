"""FP8 block-scale mixture of experts with DeepSeek-V3's routing, as one expert-parallel rank
computes it.

This file is the source of truth: `run` below is the reference that every solution is judged
against, layers.toml has the sizes it is judged at. `moebench data --write` writes FIB's JSON of
each geometry, whose `reference` is assembled from the functions below and that geometry's
constants.

Nothing here is fast on purpose. All weights are dequantised to fp32, whether or not a token
needs them, because speed-ups are quoted against exactly that amount of work.
"""

import inspect

import torch
from flashinfer_bench import Definition

from definitions import swiglu as activations
from definitions.layers import geometries, small
from definitions.schema import const, tensor, var
from definitions.swiglu import silu as swiglu

# Of the first geometry; `constants` has every other's. Routing is fixed by the model and cannot be
# read off a tensor's shape.
TOP_K = 8
NUM_GROUPS = 8
KEPT_GROUPS = 4
BLOCK = 128
EXPERTS_AT_ONCE = 32  # whose weights are dequantised before the first of them is multiplied


def dequantize(values, scales, row_block):
    """values [..., R, C] fp8 -> fp32, times one scale per row_block x 128 block.

    scales is [..., R / row_block, C / 128] float32 and may hold zeros and negative numbers.
    """
    scales = scales.repeat_interleave(row_block, dim=-2).repeat_interleave(BLOCK, dim=-1)
    return values.to(torch.float32) * scales


def route(logits, bias, routed_scaling_factor):
    """Choose TOP_K experts per token; return their indices and weights, both [T, TOP_K], weights in
    float32.

    A group of experts counts by its best two, and only the best KEPT_GROUPS groups are open. The
    bias helps to select, but the weights come from the scores without it.
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


def local_experts(x, w13, w13_scale, w2, w2_scale, local, weights):
    """Sum over a rank's experts; return [T, hidden_size] bfloat16.

    x [T, hidden_size] float32. local [T, TOP_K]: indices of the chosen experts, counted from the
    rank's first one; those below 0 and from num_local_experts on are another rank's. weights [T,
    TOP_K] float32.
    """
    num_local_experts, _, intermediate_size = w2.shape
    output = torch.zeros_like(x)
    for first in range(0, num_local_experts, EXPERTS_AT_ONCE):
        some = slice(first, first + EXPERTS_AT_ONCE)
        up_gate = dequantize(w13[some], w13_scale[some], row_block=BLOCK)
        down = dequantize(w2[some], w2_scale[some], row_block=BLOCK)
        for at in range(len(down)):
            tokens, slot = torch.nonzero(local == first + at, as_tuple=True)
            if tokens.numel() == 0:
                continue
            up, gate = x[tokens].matmul(up_gate[at].t()).split(intermediate_size, dim=1)
            rows = swiglu(gate, up).matmul(down[at].t())
            output.index_add_(0, tokens, rows * weights[tokens, slot].unsqueeze(1))
    return output.to(torch.bfloat16)


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
    experts, weights = route(routing_logits, routing_bias, float(routed_scaling_factor))
    local = experts - int(local_expert_offset)
    x = dequantize(hidden_states, hidden_states_scale.t(), row_block=1)
    return local_experts(
        x, gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, local, weights
    )


GEOMETRIES = geometries("sigmoid-bias")
SMALL = small("sigmoid-bias")


def definition_name(geometry):
    """Name of the FIB Definition for a key of GEOMETRIES."""
    return name_of(GEOMETRIES[geometry])


def name_of(of):
    """Name of the FIB Definition of a layer of these sizes."""
    routing = f"ds_routing_topk{of['top_k']}_ng{of['num_groups']}_kg{of['kept_groups']}"
    return f"moe_fp8_block_scale_{routing}_{size_suffix(of)}"


def size_suffix(of):
    """The part of a definition's name that a geometry's local experts, widths and clamp make."""
    sizes = f"e{of['num_local_experts']}_h{of['hidden_size']}_i{of['intermediate_size']}"
    return sizes + activations.suffix(of)


def reference_source(geometry):
    """One self-contained module with `run`, for the `reference` field of the JSON."""
    names = ("top_k", "num_groups", "kept_groups", "experts_at_once")
    return self_contained(GEOMETRIES[geometry], names, (dequantize, route, local_experts, run))


def self_contained(of, names, functions):
    """Source text: the sizes of these names as constants, then the functions, before them the
    activation.
    """
    constants = [*(f"{name.upper()} = {of[name]}" for name in names), f"BLOCK = {BLOCK}"]
    head = "import torch\n\n" + "\n".join(constants) + "\n"
    return "\n\n".join(
        [head, activations.source(of), *(inspect.getsource(function) for function in functions)]
    )


def axes(of):
    """Axes that every definition of this family has."""
    hidden, intermediate = of["hidden_size"], of["intermediate_size"]
    return {
        "seq_len": var("Tokens in the batch; 0 is legal."),
        "num_experts": const(of["num_experts"], "Experts of the whole layer."),
        "num_local_experts": const(of["num_local_experts"], "Experts that this rank holds."),
        "hidden_size": const(hidden, "Model width."),
        "intermediate_size": const(intermediate, "Width inside an expert."),
        "gemm1_out_size": const(2 * intermediate, "GEMM1's output: up, then gate."),
        "num_hidden_blocks": const(hidden // BLOCK, "Scale blocks along hidden_size."),
        "num_intermediate_blocks": const(
            intermediate // BLOCK, "Scale blocks along intermediate_size."
        ),
        "num_gemm1_out_blocks": const(
            2 * intermediate // BLOCK, "Scale blocks along gemm1_out_size."
        ),
    }


CONSTRAINTS = [
    "gemm1_out_size == 2 * intermediate_size",
    f"hidden_size == {BLOCK} * num_hidden_blocks",
    f"intermediate_size == {BLOCK} * num_intermediate_blocks",
    f"gemm1_out_size == {BLOCK} * num_gemm1_out_blocks",
    "num_local_experts <= num_experts",
]
EXPERT_INPUTS = {
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
}
OUTPUT = {
    "output": tensor(
        ["seq_len", "hidden_size"],
        "bfloat16",
        "Weighted sum over local experts; zero where a token has none.",
    )
}


def definition(geometry):
    """The flashinfer_bench Definition for a key of GEOMETRIES."""
    of = GEOMETRIES[geometry]
    ranks = of["num_experts"] // of["num_local_experts"]
    return Definition(
        name=definition_name(geometry),
        op_type="moe",
        description=(
            "FP8 block-scale mixture of experts with DeepSeek-V3 routing, as seen by one expert-parallel rank of "
            f"{ranks}: route, GEMM1, {activations.description(of)}, GEMM2, weighted sum over the local experts."
        ),
        tags=[
            *(f"model:{model}" for model in of["model"]),
            "quantization:fp8_block_scale",
            f"parallelism:ep{ranks}",
            f"geometry:{geometry}",
        ],
        axes=axes(of),
        constraints=CONSTRAINTS,
        inputs={
            "routing_logits": tensor(
                ["seq_len", "num_experts"], "float32", "Router output before the sigmoid."
            ),
            "routing_bias": tensor(
                ["num_experts"], "bfloat16", "Added to the scores for selection only."
            ),
            **EXPERT_INPUTS,
            "local_expert_offset": tensor(
                None, "int32", "Global index of this rank's first expert."
            ),
            "routed_scaling_factor": tensor(
                None, "float32", "Multiplies the normalised routing weights."
            ),
        },
        outputs=OUTPUT,
        reference=reference_source(geometry),
    )

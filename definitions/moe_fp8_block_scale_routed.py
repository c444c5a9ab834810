"""FP8 block-scale mixture of experts behind a router: the interface that inference engines have.

The caller hands over each token's experts and weights, in place of logits, and holds weights and
scales as checkpoints and engines do: GEMM1's rows of `gate` before those of `up`, activation scales
row by row. `run` is the reference that every solution is judged against. Each geometry is the layer
of one that moe_fp8_block_scale or its renorm form states with the router inside, or one whose
router neither has.

The number of all experts is no axis, as nothing here hangs on it: an id is local if it is one of
`num_local_experts` that begin at `local_expert_offset`, and any other costs nothing. So an engine
may number more experts than its model has, as with redundant ones, or mark an empty slot with -1 or
with the number of experts.
"""

import torch
from flashinfer_bench import Definition

from definitions import moe_fp8_block_scale as ds_routing
from definitions import moe_fp8_block_scale_renorm as renorm
from definitions import swiglu as activations
from definitions.layers import geometries
from definitions.moe_fp8_block_scale import (
    BLOCK,
    CONSTRAINTS,
    EXPERT_INPUTS,
    EXPERTS_AT_ONCE,
    OUTPUT,
    axes,
    dequantize,
    self_contained,
    size_suffix,
)
from definitions.schema import const, tensor
from definitions.swiglu import silu as swiglu


@torch.no_grad()
def run(
    hidden_states,
    hidden_states_scale,
    topk_ids,
    topk_weights,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
):
    """Return output [seq_len, hidden_size] bfloat16: the local experts' share of the layer.

    Shapes and dtypes of the arguments are in the definition that carries this source. The offset
    may be a Python number or a tensor of one element. A slot whose expert is not local has a weight
    that is not read.
    """
    num_local_experts, _, intermediate_size = gemm2_weights.shape
    local = topk_ids.to(torch.int64) - int(local_expert_offset)
    x = dequantize(hidden_states, hidden_states_scale, row_block=1)
    output = torch.zeros_like(x)
    for first in range(0, num_local_experts, EXPERTS_AT_ONCE):
        some = slice(first, first + EXPERTS_AT_ONCE)
        gate_up = dequantize(gemm1_weights[some], gemm1_weights_scale[some], row_block=BLOCK)
        down = dequantize(gemm2_weights[some], gemm2_weights_scale[some], row_block=BLOCK)
        for at in range(len(down)):
            tokens, slot = torch.nonzero(local == first + at, as_tuple=True)
            if tokens.numel() == 0:
                continue
            gate, up = x[tokens].matmul(gate_up[at].t()).split(intermediate_size, dim=1)
            rows = swiglu(gate, up).matmul(down[at].t())
            output.index_add_(0, tokens, rows * topk_weights[tokens, slot].unsqueeze(1))
    return output.to(torch.bfloat16)


def routed_key(key):
    """The geometry of a layer's routed form."""
    return f"{'deepseek-v3-ep8' if key == 'full' else key}-routed"


NOT_ROUTED = {"small-one-group"}  # experts that are no multiple of 32 are in small-renorm
# geometry -> the one that states its layer with the router inside, where there is one
ROUTER_INSIDE = {
    routed_key(key): key
    for key in (*ds_routing.GEOMETRIES, *renorm.GEOMETRIES)
    if key not in NOT_ROUTED
}
# geometry -> its layer's sizes as the router knows them, groups included
ROUTERS = {
    routed_key(key): of
    for key, of in geometries("sigmoid-bias", "renorm", "given").items()
    if key not in NOT_ROUTED
}
GEOMETRIES = {
    geometry: of | {"num_groups": 1, "kept_groups": 1} for geometry, of in ROUTERS.items()
}
SMALL = tuple(
    routed_key(key) for key in (*ds_routing.SMALL, *renorm.SMALL) if key not in NOT_ROUTED
)


def definition_name(geometry):
    """Name of the FIB Definition for a key of GEOMETRIES."""
    return name_of(GEOMETRIES[geometry])


def name_of(of):
    """Name of the FIB Definition of a layer of these sizes."""
    return f"moe_fp8_block_scale_routed_topk{of['top_k']}_{size_suffix(of)}"


def reference_source(geometry):
    """One self-contained module with `run`, for the `reference` field of the JSON."""
    return self_contained(GEOMETRIES[geometry], ("experts_at_once",), (dequantize, run))


def definition(geometry):
    """The flashinfer_bench Definition for a key of GEOMETRIES."""
    of = GEOMETRIES[geometry]
    ranks = of["num_experts"] // of["num_local_experts"]
    return Definition(
        name=definition_name(geometry),
        op_type="moe",
        description=(
            "FP8 block-scale mixture of experts behind a router, as seen by one expert-parallel rank: the caller gives "
            f"each token's experts and weights; GEMM1, {activations.description(of)}, GEMM2, weighted sum over the "
            "local experts. Rows of gate come first, activation scales are row-major."
        ),
        tags=[
            *(f"model:{model}" for model in of["model"]),
            "quantization:fp8_block_scale",
            f"parallelism:ep{ranks}",
            f"geometry:{geometry}",
        ],
        axes={
            **{name: axis for name, axis in axes(of).items() if name != "num_experts"},
            "top_k": const(of["top_k"], "Experts of a token."),
            "gemm1_out_size": const(2 * of["intermediate_size"], "GEMM1's output: gate, then up."),
        },
        constraints=[line for line in CONSTRAINTS if "num_experts" not in line.split()],
        inputs={
            "hidden_states": EXPERT_INPUTS["hidden_states"],
            "hidden_states_scale": tensor(
                ["seq_len", "num_hidden_blocks"],
                "float32",
                "One scale per token and 128 columns, row-major.",
            ),
            "topk_ids": tensor(
                ["seq_len", "top_k"],
                "int32",
                "Global ids of a token's experts. Those that are not local, -1 and any other number cost nothing; an "
                "id that comes twice counts twice.",
            ),
            "topk_weights": tensor(
                ["seq_len", "top_k"],
                "float32",
                "Factors on the experts' results, with any scaling of the model's; not read where the id is not local.",
            ),
            "gemm1_weights": tensor(
                ["num_local_experts", "gemm1_out_size", "hidden_size"],
                "float8_e4m3fn",
                "First projections: rows of `gate`, then rows of `up`.",
            ),
            **{
                name: EXPERT_INPUTS[name]
                for name in ("gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale")
            },
            "local_expert_offset": tensor(None, "int32", "Global id of this rank's first expert."),
        },
        outputs=OUTPUT,
        reference=reference_source(geometry),
    )

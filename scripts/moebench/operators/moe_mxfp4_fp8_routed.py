"""moe_mxfp4_fp8_routed: experts in MXFP4 behind a router, with FP8 activations; reference, sizes,
workloads and bound.

The layer of moe_fp8_block_scale_routed with weights as DeepSeek-V4's checkpoints hold them: E2M1,
two to a byte along K, and a power of two (E8M0) for each 32 of K. A weight is used as it is,
without an FP8 copy. `run` is the reference that every solution is judged against; nothing in it is
fast on purpose. FIB's schema has no unsigned type, so packed weights and scales are int8 there;
solutions take uint8 as well.
"""

import inspect
import math
from dataclasses import dataclass

import numpy as np
import torch
from flashinfer_bench import Definition, Trace, Workload

from moebench.core import paths
from moebench.operators import layers, moe_fp8_block_scale_routed
from moebench.operators import swiglu as activations
from moebench.operators.case import bits, trace, uuid_of
from moebench.operators.definition_parts import const, module_source, var
from moebench.operators.fp8_arguments import ROUTED_MXFP4, inputs, outputs
from moebench.operators.fp8_layer import (
    BLOCK,
    dequantize,
    layer_bound,
    size_suffix,
    slice_of_experts,
    tags,
)
from moebench.operators.fp8_workloads import (
    MODEL_TOKENS,
    MoeCase,
    after_router,
    counts_after_router,
    middle_rank,
    router_outputs,
)
from moebench.operators.layers import Sizes, Split, cached
from moebench.operators.roofline import Bound, Counts
from moebench.operators.swiglu import silu_clamp as swiglu

# ---- the reference ----

GROUP = 32  # of K, with one scale
SCALE_BIAS = 127
NAN_SCALE = 255
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the three low bits; the fourth is the sign


def dequantize_mxfp4(packed, scales):
    """packed [R, K / 2] and scales [R, K / 32], bytes -> their values, [R, K] float32.

    The low half of a byte comes first. A scale is 2^(byte - 127), and NaN where the byte is 255.
    """
    packed, scales = packed.view(torch.uint8), scales.view(torch.uint8)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    table = torch.tensor([*E2M1, *(-value for value in E2M1)], device=packed.device)
    factors = torch.exp2(scales.double() - SCALE_BIAS)
    factors = torch.where(scales == NAN_SCALE, torch.nan, factors)
    groups = table.double()[codes.int()].unflatten(-1, (-1, GROUP))
    return (groups * factors[..., None]).flatten(-2).float()


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
    local = topk_ids.to(torch.int64) - int(local_expert_offset)
    x = dequantize(hidden_states, hidden_states_scale, row_block=1)
    output = torch.zeros_like(x)

    for expert in range(len(gemm1_weights)):
        gate_up = dequantize_mxfp4(gemm1_weights[expert], gemm1_weights_scale[expert])
        down = dequantize_mxfp4(gemm2_weights[expert], gemm2_weights_scale[expert])
        tokens, slot = torch.nonzero(local == expert, as_tuple=True)
        if tokens.numel() == 0:
            continue
        gate, up = x[tokens].matmul(gate_up.t()).chunk(2, dim=1)
        rows = swiglu(gate, up).matmul(down.t())
        output.index_add_(0, tokens, rows * topk_weights[tokens, slot].unsqueeze(1))

    return output.to(torch.bfloat16)


# ---- the definition ----


@cached
def layer_sizes() -> dict[str, Sizes]:
    """Return key -> sizes on one rank, of the models whose table has `mxfp4`."""
    sizes = {}
    for name, model in layers.models().items():
        for key, value in model.get("mxfp4", {}).items():
            on_rank = layers.sizes_on_rank(name, model, Split.of_table(value))
            sizes[key] = on_rank | {"num_groups": 1, "kept_groups": 1}
    return sizes


def small() -> tuple[str, ...]:
    """Return the keys that are for machines without a GPU."""
    keys = []
    for model in layers.models().values():
        if model.get("small"):
            keys += model.get("mxfp4", {})
    return tuple(keys)


def definition_name(layer_key: str) -> str:
    """Return the name of the FIB Definition of a key."""
    sizes = layer_sizes()[layer_key]
    return f"moe_mxfp4_fp8_block_scale_routed_topk{sizes['top_k']}_{size_suffix(sizes)}"


def reference_source(layer_key: str) -> str:
    """Return one self-contained module with `run`, for the `reference` field of the JSON."""
    constants = {
        "BLOCK": BLOCK,
        "GROUP": GROUP,
        "SCALE_BIAS": SCALE_BIAS,
        "NAN_SCALE": NAN_SCALE,
        "E2M1": E2M1,
    }
    functions = [inspect.getsource(function) for function in (dequantize, dequantize_mxfp4, run)]
    return module_source(constants, [activations.source(layer_sizes()[layer_key]), *functions])


def axes(sizes: Sizes) -> dict:
    """Return the axes that a definition of the layer has."""
    hidden = sizes["hidden_size"]
    inter = sizes["intermediate_size"]
    return {
        "seq_len": var("Tokens in the batch; 0 is legal."),
        "num_local_experts": const(sizes["num_local_experts"], "Experts that this rank holds."),
        "hidden_size": const(hidden, "Model width."),
        "intermediate_size": const(inter, "Width inside an expert, of this rank."),
        "gemm1_out_size": const(2 * inter, "GEMM1's output: gate, then up."),
        "top_k": const(sizes["top_k"], "Experts of a token."),
        "num_hidden_blocks": const(hidden // BLOCK, "Scale blocks of a token."),
        "hidden_bytes": const(hidden // 2, "Bytes of a packed row along hidden_size."),
        "intermediate_bytes": const(inter // 2, "Bytes of a packed row along intermediate_size."),
        "num_hidden_groups": const(hidden // GROUP, "Groups of 32 along hidden_size."),
        "num_intermediate_groups": const(inter // GROUP, "Groups of 32 along intermediate_size."),
    }


def definition(layer_key: str) -> Definition:
    """Return the FIB Definition of a key."""
    sizes = layer_sizes()[layer_key]
    return Definition(
        name=definition_name(layer_key),
        op_type="moe",
        description=(
            "Mixture of experts with MXFP4 weights and FP8 activations behind a router: the caller "
            f"gives each token's experts and weights; GEMM1, {activations.description(sizes)}, "
            "GEMM2, weighted sum over the local experts. Rows of gate come first, activation "
            "scales are row-major." + slice_of_experts(sizes)
        ),
        tags=[tag.replace("fp8_block_scale", "mxfp4") for tag in tags(layer_key, sizes)],
        axes=axes(sizes),
        constraints=[
            "gemm1_out_size == 2 * intermediate_size",
            f"hidden_size == {BLOCK} * num_hidden_blocks",
            "hidden_size == 2 * hidden_bytes",
            "intermediate_size == 2 * intermediate_bytes",
            f"hidden_size == {GROUP} * num_hidden_groups",
            f"intermediate_size == {GROUP} * num_intermediate_groups",
        ],
        inputs=inputs(ROUTED_MXFP4),
        outputs=outputs(),
        reference=reference_source(layer_key),
    )


# ---- workloads ----

SCALES = ("gemm1_weights_scale", "gemm2_weights_scale")
TYPICAL = 120  # 2^-7 to 2^-5: products are of the order of one, and a few exceed the clamp
NEAREST = 96  # of harsh scales, from 2^-31 to 1, whose spread no block of FP8 could hold

# name, T, scales, spoilt; each is there for something that an implementation gets wrong
HARD = (
    ("one-token", 1, "random", False),
    ("no-tokens", 0, "random", False),
    ("odd-length", 37, "random", False),
    ("many-tokens", 130, "random", False),
    ("slots-without-expert", 24, "random", True),
    ("harsh-scales", 24, "harsh", False),
    ("harsh-scales-one-token", 1, "harsh", False),
)


@dataclass(frozen=True)
class Mxfp4Case(MoeCase):
    """spoilt: whether the ids have empty slots, an expert twice and padding."""

    spoilt: bool = False


def cases(layer_key: str) -> list[Mxfp4Case]:
    """Return the workloads of a key in the order in which they are run."""
    listed = HARD
    if layer_key not in small():
        listed = [(f"T={tokens}", tokens, "random", False) for tokens in MODEL_TOKENS]

    definition = definition_name(layer_key)
    offset = middle_rank(layer_sizes()[layer_key])
    all_cases = []
    for name, tokens, scales, spoilt in listed:
        uuid = uuid_of(definition, name)
        case = Mxfp4Case(layer_key, name, uuid, tokens, offset, scales=scales, spoilt=spoilt)
        all_cases.append(case)
    return all_cases


def case_with_scales(case: Mxfp4Case) -> Mxfp4Case:
    """Return the case in whose file this one's scales lie.

    Harsh ones lie in the case's own. Typical ones are alike in all cases of a key and large, so
    that the first case has them for all.
    """
    if case.scales == "harsh":
        return case
    return next(other for other in cases(case.layer_key) if other.scales == "random")


def weight_scales(case: Mxfp4Case) -> dict[str, torch.Tensor]:
    """Return both GEMMs' scales, as bytes of E8M0.

    Typical ones vary by two steps in a row, and rows by one more. Of harsh ones a sixteenth are the
    least that there is, so that their weights vanish beside the others.
    """
    sizes = layer_sizes()[case.layer_key]
    local = sizes["num_local_experts"]
    hidden = sizes["hidden_size"]
    inter = sizes["intermediate_size"]
    shapes = ((local, 2 * inter, hidden // GROUP), (local, hidden, inter // GROUP))

    scales = {}
    for name, shape in zip(SCALES, shapes, strict=True):
        drawn = random_bytes(f"{case.uuid}/{name}", shape)
        if case.scales == "harsh":
            scale = NEAREST + drawn % 32
            scale[drawn >> 4 == 0] = 0
        else:
            scale = TYPICAL + (drawn & 1) + (drawn[..., :1] >> 7)
        scales[name] = torch.from_numpy(scale.astype(np.uint8)).view(torch.int8)
    return scales


def random_bytes(seed: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return uint8 of this shape, from the Philox stream that belongs to `seed`."""
    count = math.prod(shape)
    words = bits(seed, math.ceil(count / 8)).astype("<u8")
    return words.view(np.uint8)[:count].reshape(shape)


def spoil(ids: torch.Tensor, weights: torch.Tensor, num_experts: int) -> None:
    """Leave slots empty, repeat an expert of every other token, and pad the end of the batch."""
    ids[::5, ::3] = -1
    ids[1::5, 1::3] = num_experts
    weights[::5, ::3] = torch.nan
    weights[1::5, 1::3] = torch.nan
    ids[2::4, -1] = ids[2::4, 0]
    weights[2::4, -1] = 0.5
    weights[2::4, 0] = 0.25
    ids[len(ids) * 2 // 3 :] = -1


def tensors(case: Mxfp4Case) -> dict[str, torch.Tensor]:
    """Return what goes into a case's safetensors file."""
    sizes = layer_sizes()[case.layer_key]
    stored = after_router(router_outputs(case, sizes), sizes)
    if case.spoilt:
        spoil(stored["topk_ids"], stored["topk_weights"], sizes["num_experts"])
    if case_with_scales(case) == case:
        stored |= weight_scales(case)
    return stored


def record(case: Mxfp4Case) -> Trace:
    """Return a case as a FIB workload trace."""
    definition = definition_name(case.layer_key)
    random = ("hidden_states", "hidden_states_scale", "gemm1_weights", "gemm2_weights")
    stored = ("topk_ids", "topk_weights", *SCALES)
    workload_trace = trace(case, definition, random, stored, {"local_expert_offset": case.offset})

    file_with_scales = paths.blob_file(definition, case_with_scales(case).uuid)
    for name in SCALES:
        workload_trace.workload.inputs[name].path = file_with_scales
    return workload_trace


def counts(workload: Workload, stored: dict[str, torch.Tensor], layer_key: str) -> Counts | None:
    """Return a workload's counts, or None where it lacks the routing."""
    return counts_after_router(workload, stored, layer_sizes()[layer_key])


def expert_bytes(sizes: Sizes) -> int:
    """Return the bytes of an expert's packed weights and their scales."""
    weights = 3 * sizes["intermediate_size"] * sizes["hidden_size"]
    return weights // 2 + weights // GROUP


def bound(seq_len: int, counts: Counts, layer_key: str) -> Bound:
    """Return the roofline bound of a workload with these counts.

    The GEMMs count at the dense FP8 rate, as Hopper multiplies no FP4.
    """
    sizes = layer_sizes()[layer_key]
    routing_bytes = moe_fp8_block_scale_routed.routing_bytes(seq_len, sizes)
    return layer_bound(seq_len, counts, routing_bytes, sizes, expert_bytes(sizes))

"""The layer of routed.py with MXFP4 weights, as DeepSeek-V4's checkpoints have them.

A weight is an E2M1 code of 4 bits, two to a byte along K, and each 32 along K have a scale that is
a power of two (E8M0, a byte). Activations are FP8. `run` is the reference that every solution is
judged against. FIB's schema has no unsigned type, so packed weights and scales are int8 there;
solutions take uint8 as well.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from flashinfer_bench import Trace

from moebench.core import paths
from moebench.operators import layers
from moebench.operators.fp8 import swiglu as activations
from moebench.operators.fp8.arguments import ROUTED_MXFP4, inputs
from moebench.operators.fp8.layer import MoeCase, router_outputs, slice_sentence
from moebench.operators.fp8.reference import BLOCK, dequantize
from moebench.operators.fp8.routed import TopKGiven
from moebench.operators.fp8.swiglu import silu_clamp as swiglu
from moebench.operators.layers import Layers, Sizes, Split, cached
from moebench.operators.operator import Tensors, module_source
from moebench.operators.routing import trained_router
from moebench.operators.routing.numbers import bits

GROUP = 32  # of K, with one scale
SCALE_BIAS = 127
NAN_SCALE = 255
# by the three low bits; the fourth is the sign
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


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


SCALES = ("gemm1_weights_scale", "gemm2_weights_scale")
# Bytes of E8M0. Typical scales are 2^-7 to 2^-5: results are of the order of one, and a few exceed
# the clamp. Harsh ones are 2^-31 to 1, a range that no block of FP8 could hold.
LEAST_TYPICAL = 120
LEAST_HARSH = 96


@dataclass(frozen=True)
class Mxfp4Case(MoeCase):
    """A case of this layer.

    spoilt: whether ids have empty slots, an expert twice and padding (`spoil`).
    """

    spoilt: bool = False


class Mxfp4(TopKGiven):
    """The layer with top-k given and weights in MXFP4."""

    form = "mxfp4"
    prefix = "moe_mxfp4_fp8_block_scale_routed"
    case = Mxfp4Case
    quantization = "mxfp4"
    constraints = [
        "gemm1_out_size == 2 * intermediate_size",
        f"hidden_size == {BLOCK} * num_hidden_blocks",
        "hidden_size == 2 * hidden_bytes",
        "intermediate_size == 2 * intermediate_bytes",
        f"hidden_size == {GROUP} * num_hidden_groups",
        f"intermediate_size == {GROUP} * num_intermediate_groups",
    ]
    meanings = {
        "num_local_experts": "Experts that this rank holds.",
        "hidden_size": "Model width.",
        "intermediate_size": "Width inside an expert, of this rank.",
        "gemm1_out_size": "GEMM1's output: gate, then up.",
        "top_k": "Experts of a token.",
        "num_hidden_blocks": "Scale blocks of a token.",
        "hidden_bytes": "Bytes of a packed row along hidden_size.",
        "intermediate_bytes": "Bytes of a packed row along intermediate_size.",
        "num_hidden_groups": "Groups of 32 along hidden_size.",
        "num_intermediate_groups": "Groups of 32 along intermediate_size.",
    }
    inputs = inputs(ROUTED_MXFP4)

    @cached
    def layer_sizes(self) -> Layers:
        """Return layer key -> sizes on one rank, of the models whose table has `mxfp4`."""
        sizes = {}
        for name, model in layers.models().items():
            for key, value in model.get("mxfp4", {}).items():
                on_rank = layers.sizes_on_rank(name, model, Split.of_table(value))
                sizes[key] = on_rank | {"num_groups": 1, "kept_groups": 1}
        return sizes

    def reference_source(self, key: str) -> str:
        constants = {
            "BLOCK": BLOCK,
            "GROUP": GROUP,
            "SCALE_BIAS": SCALE_BIAS,
            "NAN_SCALE": NAN_SCALE,
            "E2M1": E2M1,
        }
        activation = activations.source(self.layer_sizes()[key])
        return module_source(constants, [activation, dequantize, dequantize_mxfp4, run])

    def description(self, sizes: Sizes) -> str:
        return (
            "Mixture of experts with MXFP4 weights and FP8 activations behind a router: the caller "
            f"gives each token's experts and weights; GEMM1, {activations.description(sizes)}, "
            "GEMM2, weighted sum over the local experts. Rows of gate come first, activation "
            "scales are row-major." + slice_sentence(sizes)
        )

    def hard_cases(self, key: str) -> list[Mxfp4Case]:
        usual = self.usual_fields(self.layer_sizes()[key])
        case = partial(self.new_case, key, **usual)
        return [
            case("one-token", 1),
            case("no-tokens", 0),
            case("odd-length", 37),
            case("many-tokens", 130),
            case("slots-without-expert", 24, spoilt=True),
            case("harsh-scales", 24, scales="harsh"),
            case("harsh-scales-one-token", 1, scales="harsh"),
        ]

    def case_with_scales(self, case: Mxfp4Case) -> Mxfp4Case:
        """Return the case in whose safetensors file the weights' scales of `case` are.

        Harsh ones are in the case's own. Typical ones, which are large and the same in all cases of
        a layer, are in the first one's.
        """
        if case.scales == "harsh":
            return case
        first, *_ = self.cases(case.layer_key)
        return first

    def tensors(self, case: Mxfp4Case) -> Tensors:
        sizes = self.layer_sizes()[case.layer_key]
        stored = trained_router.route(router_outputs(case, sizes), sizes)
        if case.spoilt:
            spoil(stored["topk_ids"], stored["topk_weights"], sizes["num_experts"])
        if self.case_with_scales(case) == case:
            stored |= weight_scales(case, sizes)
        return stored

    def record(self, case: Mxfp4Case) -> Trace:
        random = (
            "hidden_states",
            "hidden_states_scale",
            "gemm1_weights",
            "gemm2_weights",
        )
        stored = (*self.routing_inputs, *SCALES)
        trace = self.trace(case, random, stored, self.scalars(case))

        file = paths.blob_file(trace.definition, self.case_with_scales(case).uuid)
        for name in SCALES:
            trace.workload.inputs[name].path = file
        return trace

    def expert_bytes(self, sizes: Sizes) -> int:
        """Return the bytes of an expert's packed weights and their scales.

        The GEMMs of the bound count at the dense FP8 rate, as Hopper multiplies no FP4.
        """
        weights = 3 * sizes["intermediate_size"] * sizes["hidden_size"]
        return weights // 2 + weights // GROUP


def weight_scales(case: Mxfp4Case, sizes: Sizes) -> Tensors:
    """Return both GEMMs' scales by name, bytes of E8M0 as int8.

    Typical ones are one of two powers in a row, and rows differ by one. Of harsh ones a sixteenth
    are 2^-127, so that their weights vanish beside the others.
    """
    local = sizes["num_local_experts"]
    hidden = sizes["hidden_size"]
    width = sizes["intermediate_size"]
    shapes = {
        "gemm1_weights_scale": (local, 2 * width, hidden // GROUP),
        "gemm2_weights_scale": (local, hidden, width // GROUP),
    }

    scales = {}
    for name, shape in shapes.items():
        drawn = random_bytes(f"{case.uuid}/{name}", shape)
        if case.scales == "harsh":
            scale = LEAST_HARSH + drawn % 32
            scale[drawn < 16] = 0
        else:
            row_step = drawn[..., :1] >> 7
            scale = LEAST_TYPICAL + row_step + (drawn & 1)
        scales[name] = torch.from_numpy(scale).view(torch.int8)
    return scales


def random_bytes(seed: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return uint8 of a shape, of the Philox stream of a seed."""
    count = math.prod(shape)
    words = bits(seed, math.ceil(count / 8)).astype("<u8")
    return words.view(np.uint8)[:count].reshape(shape)


def spoil(ids: torch.Tensor, weights: torch.Tensor, num_experts: int) -> None:
    """Change ids and weights [T, top_k] in place: some slots have no expert, some tokens an expert
    twice, and the last third of the batch is padding.
    """
    ids[::5, ::3] = -1
    ids[1::5, 1::3] = num_experts
    weights[::5, ::3] = torch.nan
    weights[1::5, 1::3] = torch.nan
    ids[2::4, -1] = ids[2::4, 0]
    weights[2::4, -1] = 0.5
    weights[2::4, 0] = 0.25
    ids[len(ids) * 2 // 3 :] = -1

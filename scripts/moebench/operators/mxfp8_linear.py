"""A linear layer in MXFP8: bf16 activations are quantised on the way in, weights are given as E4M3
codes with E8M0 scales (a byte less 127 is the exponent of two), one for each 32 of K.

`product` is the reference that every solution is judged against. The `reference` of the definitions
that `moebench data --write` writes is put together from the functions here. They are not meant to
be fast: both operands are expanded to fp32 and multiplied in fp32.
"""

from dataclasses import dataclass

import numpy as np
import torch
from flashinfer_bench import Trace, Workload

from moebench.operators.operator import (
    Case,
    Operator,
    Tensors,
    const,
    module_source,
    tensor,
    var,
)
from moebench.operators.roofline import Bound, Counts
from moebench.operators.routing.numbers import integers

# The format: OCP Microscaling Formats (MX) v1.0, MXFP8 with E4M3 elements
GROUP = 32
EMAX = 8  # E4M3's largest power of two is 2^8
LARGEST = 448.0
SCALE_BIAS = 127
NAN_SCALE = 255


def quantise(x):
    """x [M, K] -> E4M3 codes [M, K] float8_e4m3fn and E8M0 scales [M, K/32] uint8.

    A group's scale is 2^(floor(log2(amax)) - 8), at least 2^-127; codes round to nearest even and
    saturate. A group with NaN or Inf, whose conversion the format leaves open, becomes NaN.
    """
    groups = x.to(torch.float32).unflatten(-1, (-1, GROUP))
    amax = groups.abs().amax(-1)
    representable = amax.isfinite()
    _, exponent = torch.frexp(
        torch.where(representable, amax, 1.0)
    )  # amax = m 2^exponent, 0.5 <= m < 1
    shared = torch.where(amax == 0, -SCALE_BIAS, exponent - 1 - EMAX).clamp(
        -SCALE_BIAS, SCALE_BIAS
    )
    values = (
        (groups.double() * torch.exp2(-shared.double())[..., None])
        .clamp(-LARGEST, LARGEST)
        .float()
    )
    values = torch.where(representable[..., None], values, torch.nan)
    scales = torch.where(representable, shared + SCALE_BIAS, NAN_SCALE).to(torch.uint8)
    return values.to(torch.float8_e4m3fn).flatten(-2), scales


def dequantise(codes, scales):
    """codes [R, K] float8_e4m3fn, scales [R, K/32] uint8 -> their values, [R, K] float32."""
    factor = torch.exp2(scales.double() - SCALE_BIAS)
    factor = torch.where(scales == NAN_SCALE, torch.nan, factor)
    return (
        (codes.double().unflatten(-1, (-1, GROUP)) * factor[..., None])
        .flatten(-2)
        .float()
    )


def product(x, weight, weight_scale):
    """x quantised to MXFP8, times the transposed weight, in float32."""
    return (
        dequantise(*quantise(x))
        @ dequantise(weight, weight_scale.view(torch.uint8)).t()
    )


RUN = '''@torch.no_grad()
def run(x, weight, weight_scale):
    """Return output [seq_len, n] {dtype}."""
    return product(x, weight, weight_scale).to(torch.{dtype})
'''

# Layer key -> sizes. out: the dtype of the output
LAYER_SIZES = {
    "mxfp8": {"n": 4096, "k": 7168, "out": "bfloat16", "small": False},
    "mxfp8_small": {"n": 256, "k": 512, "out": "bfloat16", "small": True},
    "mxfp8_fp16": {"n": 128, "k": 384, "out": "float16", "small": True},
}
TYPICAL = (118, 124)  # scales of the weights, as bytes: 2^-9 to 2^-4, near k^-1/2
HARSH = (100, 128)  # 2^-27 to 1


@dataclass(frozen=True)
class LinearCase(Case):
    """A case of this layer. harsh: whether activations and weights' scales are of all sizes."""

    harsh: bool = False


def harsh_x(case: LinearCase) -> np.ndarray:
    """Return [T, k] uint16, bits of bf16: groups from subnormal to 16, elements up to 2^12 below
    their group's largest.

    A fifth of the groups are zeros; in every seventh group the largest saturates.
    """
    count = case.seq_len * LAYER_SIZES[case.layer_key]["k"]
    groups = count // GROUP
    top = integers(f"{case.uuid}/top", groups, 131)
    below = integers(f"{case.uuid}/below", count, 13).reshape(groups, GROUP)
    below[:, 0] = 0
    exponent = np.maximum(top[:, None] - below, 0)

    low_bits = integers(f"{case.uuid}/bits", count, 256).reshape(groups, GROUP)
    sign = low_bits >> 7
    mantissa = low_bits & 127
    mantissa[::7, 0] = 127

    bits = sign << 15 | exponent << 7 | mantissa
    is_zero = integers(f"{case.uuid}/zero", groups, 5) == 0
    bits[is_zero] = 0
    return bits.astype(np.uint16).reshape(case.seq_len, -1)


class Mxfp8Linear(Operator):
    """A product of activations that are quantised on the way in and weights in MXFP8."""

    op_type = "linear"
    case = LinearCase
    tokens = (1, 16, 64, 512, 2048, 8192)
    constraints = [f"k == {GROUP} * num_groups"]
    inputs = {
        "x": tensor("seq_len k", "bfloat16", "Activations."),
        "weight": tensor("n k", "float8_e4m3fn", "Codes of the weights."),
        "weight_scale": tensor(
            "n num_groups",
            "int8",
            "E8M0 bits of the weights' scales: the byte, read as unsigned, less 127 is the "
            "exponent of two; 255 is NaN. int8 because the schema has no unsigned type.",
        ),
    }

    def layer_sizes(self) -> dict[str, dict]:
        return LAYER_SIZES

    def definition_name_of(self, sizes: dict) -> str:
        suffix = "_fp16" if sizes["out"] == "float16" else ""
        return f"mxfp8_linear_n{sizes['n']}_k{sizes['k']}{suffix}"

    def reference_source(self, key: str) -> str:
        constants = {
            "GROUP": GROUP,
            "EMAX": EMAX,
            "LARGEST": LARGEST,
            "SCALE_BIAS": SCALE_BIAS,
            "NAN_SCALE": NAN_SCALE,
        }
        run = RUN.format(dtype=LAYER_SIZES[key]["out"])
        return module_source(constants, (quantise, dequantise, product, run))

    def description(self, sizes: dict) -> str:
        return (
            "Linear layer in MXFP8: activations quantised to E4M3 in groups of 32 with E8M0 scales "
            "as OCP MX v1.0 says, multiplied with weights given so, summed in fp32."
        )

    def tags(self, sizes: dict) -> list[str]:
        return ["quantization:mxfp8"]

    def axes(self, sizes: dict) -> dict:
        return {
            "seq_len": var("Tokens, the rows of x; 0 is legal."),
            "n": const(sizes["n"], "Outputs of the layer, the rows of weight."),
            "k": const(sizes["k"], "Inputs of the layer."),
            "num_groups": const(
                sizes["k"] // GROUP, "Groups of 32 along k, each with a scale."
            ),
        }

    def outputs(self, sizes: dict) -> dict:
        return {
            "output": tensor(
                "seq_len n", sizes["out"], "x times the transposed weight."
            )
        }

    def hard_cases(self, key: str) -> list[LinearCase]:
        return [
            self.new_case(key, "one-token", 1),
            self.new_case(key, "no-tokens", 0),
            self.new_case(key, "odd-length", 37),
            self.new_case(key, "many-tiles", 130),
            self.new_case(key, "harsh-scales", 24, harsh=True),
            self.new_case(key, "harsh-scales-one-token", 1, harsh=True),
        ]

    def tensors(self, case: LinearCase) -> Tensors:
        low, high = HARSH if case.harsh else TYPICAL
        sizes = LAYER_SIZES[case.layer_key]
        count = sizes["n"] * sizes["k"] // GROUP

        scales = low + integers(f"{case.uuid}/weight_scale", count, high - low)
        scales = torch.from_numpy(scales).to(torch.uint8).view(torch.int8)
        stored = {"weight_scale": scales.reshape(sizes["n"], -1)}
        if case.harsh:
            stored["x"] = torch.from_numpy(harsh_x(case)).view(torch.bfloat16)
        return stored

    def record(self, case: LinearCase) -> Trace:
        stored = ("weight_scale", "x") if case.harsh else ("weight_scale",)
        return self.trace(case, ("x", "weight"), stored, {})

    def counts(self, workload: Workload, stored: Tensors, key: str) -> Counts:
        """Return a workload's counts: a linear layer is one expert, which takes every row."""
        rows = workload.axes["seq_len"]
        return Counts(rows=rows, tokens=rows, active=1)

    def bound(self, seq_len: int, counts: Counts, key: str) -> Bound:
        """Return the roofline bound: everything read once, the output written once, the GEMM at the
        dense FP8 rate.
        """
        n = LAYER_SIZES[key]["n"]
        k = LAYER_SIZES[key]["k"]
        weights = n * k
        moved = weights + weights // GROUP + seq_len * 2 * (k + n)
        return Bound(counts.rows, counts.active, moved, flops=2 * seq_len * weights)

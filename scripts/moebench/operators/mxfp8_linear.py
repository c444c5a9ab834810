"""A linear layer in MXFP8: bf16 activations quantised on the way in, weights given as E4M3 with
E8M0 scales.

`product` is the reference that every solution is judged against, LAYER_SIZES has the sizes it is
judged at. `moebench data --write` writes FIB's JSON of each key, whose `reference` is assembled
from the functions below. Nothing here is fast on purpose: both operands are expanded to fp32 and
multiplied in fp32. Scales of the weights and hard activations of a workload are made from its uuid.
"""

import inspect
from dataclasses import dataclass

import numpy as np
import torch
from flashinfer_bench import Definition, Trace, Workload

from moebench.operators.case import Case, integers, trace, uuid_of
from moebench.operators.definition_parts import const, module_source, tensor, var
from moebench.operators.roofline import Bound, Counts

# Of the format: OCP Microscaling Formats (MX) v1.0, MXFP8 with E4M3 elements.
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
    shared = torch.where(amax == 0, -SCALE_BIAS, exponent - 1 - EMAX).clamp(-SCALE_BIAS, SCALE_BIAS)
    values = (
        (groups.double() * torch.exp2(-shared.double())[..., None]).clamp(-LARGEST, LARGEST).float()
    )
    values = torch.where(representable[..., None], values, torch.nan)
    scales = torch.where(representable, shared + SCALE_BIAS, NAN_SCALE).to(torch.uint8)
    return values.to(torch.float8_e4m3fn).flatten(-2), scales


def dequantise(codes, scales):
    """codes [R, K] float8_e4m3fn, scales [R, K/32] uint8 -> their values, [R, K] float32."""
    factor = torch.exp2(scales.double() - SCALE_BIAS)
    factor = torch.where(scales == NAN_SCALE, torch.nan, factor)
    return (codes.double().unflatten(-1, (-1, GROUP)) * factor[..., None]).flatten(-2).float()


def product(x, weight, weight_scale):
    """x quantised to MXFP8, times the transposed weight, in float32."""
    return dequantise(*quantise(x)) @ dequantise(weight, weight_scale.view(torch.uint8)).t()


# out: the dtype of the output where that is not bfloat16
LAYER_SIZES = {
    "mxfp8": {"n": 4096, "k": 7168},
    "mxfp8_small": {"n": 256, "k": 512},
    "mxfp8_fp16": {"n": 128, "k": 384, "out": "float16"},
}


def layer_sizes() -> dict[str, dict]:
    """Return key -> sizes."""
    return LAYER_SIZES


def small() -> tuple[str, ...]:
    """Return the keys that are for machines without a GPU."""
    return ("mxfp8_small", "mxfp8_fp16")


def definition_name(layer_key: str) -> str:
    """Return the name of the FIB Definition of a key."""
    sizes = LAYER_SIZES[layer_key]
    return f"mxfp8_linear_n{sizes['n']}_k{sizes['k']}" + ("_fp16" if "out" in sizes else "")


def reference_source(layer_key: str) -> str:
    """Return one self-contained module with `run`, for the `reference` field of the JSON."""
    constants = {
        "GROUP": GROUP,
        "EMAX": EMAX,
        "LARGEST": LARGEST,
        "SCALE_BIAS": SCALE_BIAS,
        "NAN_SCALE": NAN_SCALE,
    }
    functions = [inspect.getsource(function) for function in (quantise, dequantise, product)]
    dtype = LAYER_SIZES[layer_key].get("out", "bfloat16")
    run = (
        "@torch.no_grad()\n"
        "def run(x, weight, weight_scale):\n"
        f'    """Return output [seq_len, n] {dtype}."""\n'
        f"    return product(x, weight, weight_scale).to(torch.{dtype})\n"
    )
    return module_source(constants, [*functions, run])


def definition(layer_key: str) -> Definition:
    """Return the FIB Definition of a key."""
    sizes = LAYER_SIZES[layer_key]
    out = sizes.get("out", "bfloat16")
    return Definition(
        name=definition_name(layer_key),
        op_type="linear",
        description=(
            "Linear layer in MXFP8: activations quantised to E4M3 in groups of 32 with E8M0 scales "
            "as OCP MX v1.0 says, multiplied with weights given so, summed in fp32."
        ),
        tags=["quantization:mxfp8", f"geometry:{layer_key}"],
        axes={
            "seq_len": var("Tokens, the rows of x; 0 is legal."),
            "n": const(sizes["n"], "Outputs of the layer, the rows of weight."),
            "k": const(sizes["k"], "Inputs of the layer."),
            "num_groups": const(sizes["k"] // GROUP, "Groups of 32 along k, each with a scale."),
        },
        constraints=[f"k == {GROUP} * num_groups"],
        inputs={
            "x": tensor(["seq_len", "k"], "bfloat16", "Activations."),
            "weight": tensor(["n", "k"], "float8_e4m3fn", "Codes of the weights."),
            "weight_scale": tensor(
                ["n", "num_groups"],
                "int8",
                "E8M0 bits of the weights' scales: the byte, read as unsigned, less 127 is the "
                "exponent of two; 255 is NaN. int8 because the schema has no unsigned type.",
            ),
        },
        outputs={"output": tensor(["seq_len", "n"], out, "x times the transposed weight.")},
        reference=reference_source(layer_key),
    )


ROWS = (1, 16, 64, 512, 2048, 8192)
TYPICAL = (118, 124)  # scales of the weights, as bytes: 2^-9 to 2^-4, near k^-1/2
HARSH = (100, 128)  # 2^-27 to 1

# name, rows of x, kind; each is there for something that an implementation gets wrong
HARD = (
    ("one-token", 1, "plain"),
    ("no-tokens", 0, "plain"),
    ("odd-length", 37, "plain"),
    ("many-tiles", 130, "plain"),
    ("harsh-scales", 24, "harsh"),
    ("harsh-scales-one-token", 1, "harsh"),
)


@dataclass(frozen=True)
class LinearCase(Case):
    """kind: "plain", or "harsh" with activations and scales of all sizes."""

    kind: str = "plain"


def cases(layer_key: str) -> list[LinearCase]:
    """Return the workloads of a key in the order in which they are run."""
    listed = HARD
    if layer_key not in small():
        listed = [(f"T={rows}", rows, "plain") for rows in ROWS]
    definition = definition_name(layer_key)
    return [LinearCase(layer_key, name, uuid_of(definition, name), *rest) for name, *rest in listed]


def harsh_x(case: LinearCase) -> np.ndarray:
    """Return [T, k] uint16, bits of bf16: groups from subnormal to 16, elements up to 2^12 below
    their group's largest.

    A fifth of the groups are zeros; in every seventh group the largest saturates.
    """
    groups = case.seq_len * LAYER_SIZES[case.layer_key]["k"] // GROUP
    top = integers(f"{case.uuid}/top", groups, 131)[:, None]
    below = integers(f"{case.uuid}/below", groups * GROUP, 13).reshape(groups, GROUP)
    low_bits = integers(f"{case.uuid}/bits", groups * GROUP, 256).reshape(groups, GROUP)

    sign = low_bits >> 7
    mantissa = low_bits & 127
    below[:, 0] = 0
    mantissa[::7, 0] = 127
    exponent = np.maximum(top - below, 0)

    bits = sign << 15 | exponent << 7 | mantissa
    bits[integers(f"{case.uuid}/zero", groups, 5) == 0] = 0
    return bits.astype(np.uint16).reshape(case.seq_len, -1)


def tensors(case: LinearCase) -> dict[str, torch.Tensor]:
    """Return what goes into a case's safetensors file."""
    low, high = HARSH if case.kind == "harsh" else TYPICAL
    n = LAYER_SIZES[case.layer_key]["n"]
    groups = LAYER_SIZES[case.layer_key]["k"] // GROUP

    scale = low + integers(f"{case.uuid}/weight_scale", n * groups, high - low)
    bits = torch.from_numpy(scale.astype(np.uint8).reshape(n, groups))
    stored = {"weight_scale": bits.view(torch.int8)}
    if case.kind == "harsh":
        stored["x"] = torch.from_numpy(harsh_x(case)).view(torch.bfloat16)
    return stored


def record(case: LinearCase) -> Trace:
    """Return a case as a FIB workload trace."""
    stored = ("weight_scale", "x") if case.kind == "harsh" else ("weight_scale",)
    return trace(case, definition_name(case.layer_key), ("x", "weight"), stored)


def counts(workload: Workload, stored: dict[str, torch.Tensor], layer_key: str) -> Counts:
    """Return a workload's counts: a linear layer is one expert, which takes every row."""
    rows = workload.axes["seq_len"]
    return Counts(rows=rows, tokens=rows, active=1)


def bound(seq_len: int, counts: Counts, layer_key: str) -> Bound:
    """Return the roofline bound: everything read once, the output written once, the GEMM at the
    dense FP8 rate.

    Only the rows matter.
    """
    n = LAYER_SIZES[layer_key]["n"]
    k = LAYER_SIZES[layer_key]["k"]
    moved = n * k + n * k // GROUP + seq_len * 2 * (k + n)
    return Bound(counts.rows, counts.active, moved, 2 * seq_len * n * k)

"""A linear layer in MXFP8: bf16 activations quantised on the way in, weights given as E4M3 with
E8M0 scales.

This file is the source of truth: `run` below is the reference that every solution is judged
against, `GEOMETRIES` the sizes it is judged at. `moebench data --write` writes FIB's JSON of each
geometry, whose `reference` is assembled from the functions below.

Nothing here is fast on purpose: both operands are expanded to fp32 and multiplied in fp32.
"""

import inspect

import torch
from flashinfer_bench import Definition

from definitions.schema import const, tensor, var

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


# Per geometry: its sizes, and the dtype of the output where that is not bfloat16.
GEOMETRIES = {
    "mxfp8": {"n": 4096, "k": 7168},
    "mxfp8_small": {"n": 256, "k": 512},
    "mxfp8_fp16": {"n": 128, "k": 384, "out": "float16"},
}
SMALL = ("mxfp8_small", "mxfp8_fp16")  # for machines without a GPU


def definition_name(geometry):
    """Name of the FIB Definition for a key of GEOMETRIES."""
    sizes = GEOMETRIES[geometry]
    return f"mxfp8_linear_n{sizes['n']}_k{sizes['k']}" + ("_fp16" if "out" in sizes else "")


def reference_source(geometry):
    """One self-contained module with `run`, for the `reference` field of the JSON."""
    names = ("GROUP", "EMAX", "LARGEST", "SCALE_BIAS", "NAN_SCALE")
    constants = "\n".join(f"{name} = {globals()[name]}" for name in names)
    functions = [inspect.getsource(function) for function in (quantise, dequantise, product)]
    dtype = GEOMETRIES[geometry].get("out", "bfloat16")
    run = (
        "@torch.no_grad()\n"
        "def run(x, weight, weight_scale):\n"
        f'    """Return output [seq_len, n] {dtype}."""\n'
        f"    return product(x, weight, weight_scale).to(torch.{dtype})\n"
    )
    return "\n\n".join(["import torch\n\n" + constants + "\n", *functions, run])


def definition(geometry):
    """The flashinfer_bench Definition for a key of GEOMETRIES."""
    sizes = GEOMETRIES[geometry]

    return Definition(
        name=definition_name(geometry),
        op_type="linear",
        description=(
            "Linear layer in MXFP8: activations quantised to E4M3 in groups of 32 with E8M0 scales as OCP MX v1.0 "
            "says, multiplied with weights given so, summed in fp32."
        ),
        tags=["quantization:mxfp8", f"geometry:{geometry}"],
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
                "E8M0 bits of the weights' scales: the byte, read as unsigned, less 127 is the exponent of two; 255 is "
                "NaN. int8 because the schema has no unsigned type.",
            ),
        },
        outputs={
            "output": tensor(
                ["seq_len", "n"], sizes.get("out", "bfloat16"), "x times the transposed weight."
            )
        },
        reference=reference_source(geometry),
    )

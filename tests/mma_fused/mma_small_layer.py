"""mma_fused's sources for a small layer, and what its h and output should be.

    python mma_small_layer.py LIBRARY

runs a test build of the layer "split-k", or "split-k-mxfp4", on the GPU, for the sanitizers, and
checks every stage of it on the CPU.
"""

import sys
from pathlib import Path

import hopper_faults
import hopper_layouts
import stage_build
import stage_inputs
import stage_references
import torch
from moebench.operators.fp8 import swiglu
from moebench.operators.fp8.mxfp4 import dequantize_mxfp4
from moebench.packing.problem import SYMBOLS, constants_of
from packed_sources import CUDA, packed_texts
from random_values import Draw

from solutions.common.host.build_library import load_library
from solutions.mma_fused.targets import TARGETS, Target

SAMPLES = stage_build.SAMPLE.parent
FORM = {
    "activation": "silu",
    "swiglu_limit": 0,
    "renorm": False,
    "num_shared_experts": 0,
}
GROUPS = {
    "num_experts": 128,
    "num_local_experts": 40,
    "top_k": 8,
    "num_groups": 8,
    "kept_groups": 4,
}
ALL_LOCAL = {
    "num_experts": 96,
    "num_local_experts": 96,
    "top_k": 16,
    "num_groups": 1,
    "kept_groups": 1,
    "renorm": True,
}
# and 16 of eight ranks
SHARED = GROUPS | {"num_local_experts": 18, "num_shared_experts": 2}


def layer_of(hidden, inter, routing=GROUPS, clamp=None, routed=False, mxfp4=False):
    """Return the sizes of a layer; clamp: the activation, with a limit."""
    layer = {
        **FORM,
        **routing,
        "hidden_size": hidden,
        "intermediate_size": inter,
        "routed": routed or mxfp4,
        "mxfp4": mxfp4,
    }
    if clamp:
        layer |= {"activation": clamp, "swiglu_limit": 0.5}
    return layer


# K blocks that are no multiple of the warps; 10 column tiles, or 5 where I allows two weight tiles
# side by side. "ds": short tiles with 8 warps alone; "long": with 4 not. "split-k", "tiny-split-k":
# two K blocks or more for each of 8, of 4 warps, so that tiles may be split along K
LAYERS = {
    "ds": layer_of(640, 640),
    "renorm": layer_of(256, 128, ALL_LOCAL, "silu"),
    "tiny": layer_of(256, 128),
    "long": layer_of(128, 640),
    "tiny-split-k": layer_of(1024, 128),
    "split-k": layer_of(2176, 128, clamp="swiglustep"),
    "shared": layer_of(256, 128, SHARED),
    "routed": layer_of(640, 384, clamp="swigluoai", routed=True),
    "mxfp4": layer_of(640, 640, clamp="silu", mxfp4=True),
    "tiny-mxfp4": layer_of(256, 128, mxfp4=True),
    "long-mxfp4": layer_of(128, 640, mxfp4=True),
    "split-k-mxfp4": layer_of(2176, 128, mxfp4=True),
}
ARCHITECTURES = {}
for capability, target in TARGETS.items():
    digits = capability.replace(".", "")
    ARCHITECTURES[f"sm_{digits}"] = target
# How it is built, and the first of the architectures that have it so.
CONFIGURATIONS = {target: name for name, target in reversed(ARCHITECTURES.items())}
HERE = "9.0"  # no `a` target
if torch.cuda.is_available():
    HERE = ".".join(map(str, torch.cuda.get_device_capability()))

PADDED = 8  # an expert's rows are padded to a multiple
BLOCK_M = 16  # rows of an m_block
# a token count for each tile of the rules of many tokens
MANY_TOKENS = (300, 1000, 3000)
COUNTS = (1, 7, 40)  # tokens for the sanitizers: every CTA routes all; a grid barrier
H_ERROR = 2e-3  # of 128 columns, relative to their norm


def constants(values):
    """Return lines of C++ that define constants."""
    text = ""
    for name, value in values.items():
        literal = str(value).lower()
        text += f"constexpr auto {name} = {literal};\n"
    return text


def size_files(layer):
    """Return problem.cuh and interface.cuh, as packing writes them for a definition."""
    activation = {}
    for name, value in swiglu.constants(layer).items():
        activation["k" + name.title().replace("_", "")] = value
    names = constants_of("interface", "full")
    form = {SYMBOLS[name]: layer["routed"] for name in names}
    return {
        "problem.cuh": stage_build.problem_header(layer) + constants(activation),
        "interface.cuh": "#pragma once\n" + constants(form),
        "weights.cuh": "#pragma once\n" + constants({"kMxfp4Weights": layer["mxfp4"]}),
    }


def cuda_files(layer_key, layer=None):
    """Return file name -> text of the packed CUDA sources; two folders have no file of one name.

    layer: other sizes than the definition's.
    """
    packed = packed_texts("mma_fused", layer_key, CUDA)
    texts = {Path(path).name: text for path, text in packed.items()}
    assert len(texts) == len(packed)
    if layer:
        texts |= size_files(layer)
    return texts


def h_index(inter, mxfp4=False):
    """Return [I] int64: where a row's columns lie."""
    column = torch.arange(inter)
    within = column % 8
    if mxfp4:  # the even ones, then the odd ones
        first = column - within
        half = within % 2
        return first + half * 4 + within // 2
    step = column // 128
    t = column % 128 // 32
    j = column % 32 // 8
    return step * 128 + (4 * j + t) * 8 + within


def h_of(h, scale, rows, mxfp4=False):
    """Return h [rows, I] fp32 of its fp16 values [most rows, I] and scales [most rows, I / 32]."""
    count = len(rows.token)
    index = h_index(h.shape[1], mxfp4).to(h.device)
    values = h[:count, index].float()
    return values * scale[:count].repeat_interleave(32, 1)


def handed_out(arrays, layer):
    """Return h and its scales, as `first_fault` takes them, of the arrays that a test build hands
    out.
    """
    inter = layer["intermediate_size"]
    h = arrays["h"].view(torch.float16)
    h_scale = arrays["h_scale"].view(torch.float32)
    return h.view(-1, inter), h_scale.view(-1, inter // 32)


def rows_of(layer, arguments):
    """Return what routing should give: chosen [T, E_local], weight [T, E_local], rows."""
    chosen, weight = stage_references.reference_choice(layer, arguments)
    rows = hopper_layouts.expected_rows(chosen, PADDED, layer["top_k"], BLOCK_M)
    return chosen, weight, rows


def wrong_h(layer, arguments, rows, weight, h):
    real = rows.real
    if not real.any():
        return None
    expected = stage_references.reference_h(layer, arguments, rows, weight)
    return hopper_faults.wrong_blocks(
        h[real], expected[real], H_ERROR, "row that is no padding"
    )


def wrong_scales(h_scale):
    is_power_of_two = h_scale.frexp().mantissa == 0.5
    num_wrong = int((~is_power_of_two).sum())
    if num_wrong:
        return f"{num_wrong} scales are not powers of two"
    return None


def first_fault(layer, arguments, output, h, h_scale):
    """Return the first stage whose result is wrong, and where; None if all are right.

    output [T, H]: the layer's. h, h_scale: as in the scratch, [most rows, ...].
    """
    if layer.get("mxfp4"):
        arguments = dequantised(arguments)
    _, weight, rows = rows_of(layer, arguments)
    h = h_of(h, h_scale, rows, layer.get("mxfp4"))
    fault = wrong_h(layer, arguments, rows, weight, h)
    fault = fault or wrong_scales(h_scale[: len(h)])
    if fault:
        return f"gemm1 + swiglu_quant: {fault}"

    y = stage_references.reference_y(arguments, rows, h).float()
    expected = stage_references.combined(y, rows.token_rows)
    fault = hopper_faults.wrong_blocks(
        output, expected, hopper_faults.BF16_ERROR, "token"
    )
    return f"gemm2 + combine: {fault}" if fault else None


def stage_sources(layer_key, layer=None):
    """Return file name -> text of the test build for a definition, which hands out its scratch.

    layer: other sizes than the definition's.
    """
    texts = cuda_files(layer_key, layer)
    texts["launch_layer_cu.cuh"] = texts.pop("launch_layer.cu")
    texts["stages.cu"] = (SAMPLES / "mma_stages.cu").read_text()
    return texts


def inputs(layer, num_tokens, seed=0):
    """Return a call's arguments by name, on the CPU."""
    random_weights = mxfp4_weights if layer["mxfp4"] else stage_inputs.weights
    tokens = stage_inputs.tokens(layer, num_tokens, "cpu", seed)
    return tokens | random_weights(layer, "cpu")


def mxfp4_weights(layer, device, seed=0):
    """Return random MXFP4 weights, as the layer's arguments by name."""
    draw = Draw(device, seed)
    experts = layer["num_local_experts"]
    hidden = layer["hidden_size"]
    inter = layer["intermediate_size"]

    tensors = {}
    for gemm, columns, depth in (
        ("gemm1", 2 * inter, hidden),
        ("gemm2", hidden, inter),
    ):
        tensors[f"{gemm}_weights_scale"] = mxfp4_scales(
            draw, experts, columns, depth // 32
        )
        tensors[f"{gemm}_weights"] = draw.mxfp4_weights(experts, columns, depth)
    return tensors


def mxfp4_scales(draw, *shape):
    """Return scales within 2^-14 to 2^-8, of which some of a row lie far below, and some are the
    least.
    """
    scale = draw.integers(113, 119, *shape, dtype=torch.uint8)
    which = draw.integers(0, 64, *shape, dtype=torch.uint8)
    for number, smaller in ((0, 0), (1, 64), (2, 100)):
        scale[which == number] = smaller
    return scale.view(torch.int8)


def dequantised(arguments):
    """Return the arguments with weights in fp32, and scales of one for each 128 x 128."""
    wide = dict(arguments)
    for name in ("gemm1_weights", "gemm2_weights"):
        packed = arguments[name]
        scales = arguments[f"{name}_scale"]
        weights = torch.stack(list(map(dequantize_mxfp4, packed, scales)))
        experts, rows, columns = weights.shape
        shape = (experts, rows // 128, columns // 128)
        wide[name] = weights
        wide[f"{name}_scale"] = torch.ones(shape, device=weights.device)
    return wide


def flags(configuration):
    """Return flags of nvcc or a C++ compiler, for shared memory in KiB, TMA and cvt as Target has
    them.
    """
    return Target(*configuration).flags()


def on_gpu(arguments):
    """Return the arguments with tensors on the GPU."""
    copied = {}
    for name, value in arguments.items():
        copied[name] = value.cuda() if torch.is_tensor(value) else value
    return copied


def main(path):
    library = load_library(path)
    is_mxfp4 = library["read_numbers"]()["mxfp4"]
    layer = LAYERS["split-k-mxfp4" if is_mxfp4 else "split-k"]
    for num_tokens in COUNTS:
        arguments = inputs(layer, num_tokens)
        output, arrays, _ = stage_build.call(library, layer, on_gpu(arguments), 0)
        arrays = {name: array.cpu() for name, array in arrays.items()}
        h, h_scale = handed_out(arrays, layer)
        fault = first_fault(layer, arguments, output.cpu(), h, h_scale)
        print(f"T={num_tokens}: {fault or stage_build.RIGHT}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""mma_fused's sources for a small layer, and what its h and output should be.

    python mma_small_layer.py LIBRARY

runs a test build of the layer "split-k" on the GPU, for the sanitizers, and checks every stage of
it on the CPU.
"""

import sys
from pathlib import Path
from unittest import mock

import hopper_stages as stages
import torch
from moebench.operators import swiglu
from moebench.packing.pack import pack
from moebench.packing.problem import facts

from solutions.common.host.build_library import load_library
from solutions.mma_fused.targets import TARGETS, Target

SAMPLES = stages.SAMPLE.parent
SILU = {"activation": "silu", "swiglu_limit": 0, "renorm": False, "routed": False}
DS = SILU | {
    "num_experts": 128,
    "num_local_experts": 40,
    "top_k": 8,
    "num_groups": 8,
    "kept_groups": 4,
}
OF_96 = {"num_experts": 96, "num_local_experts": 96, "top_k": 16, "num_groups": 1, "kept_groups": 1}
CLAMP, OAI, STEP = (
    {"activation": name, "swiglu_limit": 0.5} for name in ("silu", "swigluoai", "swiglustep")
)
# K blocks that are no multiple of the warps; 10 column tiles, or 5 where I allows two weight tiles
# side by side. "ds": short tiles with 8 warps alone; "long": with 4 not. "split-k", "tiny-split-k":
# two K blocks or more for each of 8, of 4 warps, so that tiles may be split along K
LAYERS = {
    "ds": DS | {"hidden_size": 640, "intermediate_size": 640},
    "renorm": DS | OF_96 | CLAMP | {"hidden_size": 256, "intermediate_size": 128, "renorm": True},
    "tiny": DS | {"hidden_size": 256, "intermediate_size": 128},
    "long": DS | {"hidden_size": 128, "intermediate_size": 640},
    "tiny-split-k": DS | {"hidden_size": 1024, "intermediate_size": 128},
    "split-k": DS | STEP | {"hidden_size": 2176, "intermediate_size": 128},
    "routed": DS | OAI | {"hidden_size": 640, "intermediate_size": 384, "routed": True},
}
ARCHITECTURES = {
    f"sm_{capability.replace('.', '')}": target for capability, target in TARGETS.items()
}
HERE = (
    "{}.{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else "9.0"
)  # no `a` target
# how it is built, and the first of the architectures that have it so
CONFIGURATIONS = {target: name for name, target in reversed(ARCHITECTURES.items())}
PADDED, BLOCK_M = 8, 16  # an expert's rows are padded to a multiple; rows of an m_block
MANY_TOKENS = (300, 1000, 3000)  # a token count for each tile of the rules of many tokens
COUNTS = (1, 7, 40)  # tokens for the sanitizers: every CTA routes all; a grid barrier
H_ERROR, BF16_ERROR = 2e-3, 5e-3  # of 128 columns, relative to their norm


def size_files(of):
    """problem.cuh and interface.cuh, as packing writes them for a definition; none without
    sizes.
    """
    if not of:
        return {}
    activation = {
        f"k{name.title().replace('_', '')}": value for name, value in swiglu.constants(of).items()
    }
    interface = {symbol: of["routed"] for symbol, _ in facts("interface", "full").values()}
    told, form = (
        "".join(
            f"constexpr auto {name} = {str(value).lower()};\n" for name, value in values.items()
        )
        for values in (activation, interface)
    )
    return {
        "problem.cuh": stages.problem_header(of) + told,
        "interface.cuh": "#pragma once\n" + form,
    }


def cuda_files(layer_key):
    """File name -> text of the packed CUDA sources; two folders have no file of one name."""
    paths = {
        file.path: file.content
        for file in pack("mma_fused")[layer_key].sources
        if ".cu" in file.path
    }
    named = {Path(path).name: text for path, text in paths.items()}
    assert len(named) == len(paths), sorted(paths)
    return named


def h_index(inter):
    """[I] int64: where a row's columns lie."""
    column = torch.arange(inter)
    step, t, j = column // 128, column % 128 // 32, column % 32 // 8
    return step * 128 + (4 * j + t) * 8 + column % 8


def h_of(h, scale, rows):
    """h [rows, I] fp32 of its fp16 values [most rows, I] and scales [most rows, I / 32]."""
    h = h[: len(rows.token)].float()[:, h_index(h.shape[1]).to(h.device)]
    return h * scale[: len(h)].repeat_interleave(32, 1)


def handed_out(arrays, of):
    """h and its scales, as `first_fault` takes them, of the arrays that a test build hands out."""
    h, scale = arrays["h"].view(torch.float16), arrays["h_scale"].view(torch.float32)
    return h.view(-1, of["intermediate_size"]), scale.view(-1, of["intermediate_size"] // 32)


def rows_of(of, arguments):
    """What routing should give: chosen [T, E_local], weight [T, E_local], rows."""
    chosen, weight = stages.reference_choice(of, arguments)
    return chosen, weight, stages.expected_rows(chosen, PADDED, of["top_k"], BLOCK_M)


def first_fault(of, arguments, output, h, h_scale):
    """The first stage whose result is wrong, and where; None if all are right.

    output [T, H]: the layer's. h, h_scale: as in the scratch, [most rows, ...].
    """
    chosen, weight, rows = rows_of(of, arguments)
    real = rows.real
    got = h_of(h, h_scale, rows)
    if real.any():
        up, gate = stages.reference_halves(of, arguments, rows)
        with mock.patch.object(swiglu, "LIMIT", of["swiglu_limit"]):
            want = swiglu.function_of(of)(gate, up) * weight[rows.token, rows.expert][:, None]
        if fault := stages.differing(got[real], want[real], H_ERROR, "row that is no padding"):
            return f"gemm1 + swiglu_quant: {fault}"
    if (
        wrong := ~torch.isin(h_scale[: len(got)].frexp().mantissa, h_scale.new_tensor([0.5]))
    ).any():
        return f"gemm1 + swiglu_quant: {int(wrong.sum())} scales are not powers of two"
    found = stages.ReadOut(chosen, weight, rows, {}, got, 1)
    want = stages.combined(stages.reference_y(arguments, found).float(), rows.token_rows)
    fault = stages.differing(output, want, BF16_ERROR, "token")
    return f"gemm2 + combine: {fault}" if fault else None


def stage_sources(layer_key, of=None):
    """File name -> text of the test build for a definition, which hands out its scratch. of: other
    sizes.
    """
    texts = cuda_files(layer_key) | size_files(of)
    texts["launch_layer_cu.cuh"] = texts.pop("launch_layer.cu")
    return texts | {"stages.cu": (SAMPLES / "mma_stages.cu").read_text()}


def flags(configuration):
    """Of nvcc or a C++ compiler, for shared memory in KiB, TMA and cvt as Target has them."""
    return Target(*configuration).flags()


def main(path):
    library, of = load_library(path), LAYERS["split-k"]
    for num_tokens in COUNTS:
        given = stages.tokens(of, num_tokens, "cpu") | stages.weights(of, "cpu")
        there = {
            name: value.cuda() if torch.is_tensor(value) else value for name, value in given.items()
        }
        output, arrays, _ = stages.call(library, of, there, 0)
        found = handed_out({name: array.cpu() for name, array in arrays.items()}, of)
        fault = first_fault(of, given, output.cpu(), *found)
        print(f"T={num_tokens}: {fault or stages.RIGHT}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

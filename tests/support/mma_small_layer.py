"""mma_fused's sources for a small layer and for a host that runs them, and what its h and output should be.

    python mma_small_layer.py LIBRARY

runs a test build of the layer "ds" on the GPU, for the sanitizers, and holds every stage of it on the CPU.
"""

import math
import sys
from pathlib import Path

import hopper_stages as stages
import torch
from harness.packing.pack import pack
from harness.packing.problem import NAMES

from solutions.kernels.build_library import load_library

SAMPLES = stages.SAMPLE.parent
DS = {"num_experts": 128, "num_local_experts": 40, "top_k": 8, "num_groups": 8, "kept_groups": 4}
RENORM = {"num_experts": 128, "num_local_experts": 128, "top_k": 10, "num_groups": 1, "kept_groups": 1}
# K steps that are no multiple of the warps; 10 column tiles
LAYERS = {
    "ds": DS | {"hidden_size": 640, "intermediate_size": 384, "renorm": False, "routed": False},
    "renorm": RENORM | {"hidden_size": 256, "intermediate_size": 128, "renorm": True, "routed": False},
    "tiny": DS | {"hidden_size": 256, "intermediate_size": 128, "renorm": False, "routed": False},
    "routed": DS | {"hidden_size": 640, "intermediate_size": 384, "renorm": False, "routed": True},
}
INTERFACE = ("kRoutedForm", "kGateFirst", "kScalesRowMajor")
# shared memory in KiB, TMA, cvt -> architectures that are built like that
CONFIGURATIONS = {
    (227, 1, 1): "sm_90",
    (163, 0, 0): "sm_80",
    (99, 0, 0): "sm_86",
    (99, 0, 1): "sm_89",
    (99, 1, 1): "sm_120",
}
PADDED, CHUNK_ROWS = 8, 24  # an expert's rows are padded to a multiple, and cut
COUNTS = (1, 7, 40)  # tokens for the sanitizers: every CTA routes all; a grid barrier
H_ERROR, BF16_ERROR = 2e-3, 5e-3  # of 128 columns, relative to their norm


def problem(of):
    """Text of problem.cuh."""
    lines = [f"constexpr int {symbol} = {of[key]};" for key, symbol in NAMES.items()]
    return "\n".join(["#pragma once", *lines, f"constexpr bool kRenorm = {str(of['renorm']).lower()};", ""])


def interface(of):
    """Text of interface.cuh."""
    named = (f"constexpr bool {name} = {str(of['routed']).lower()};" for name in INTERFACE)
    return "\n".join(["#pragma once", *named, ""])


def cuda_files(geometry):
    """File name -> text of the packed CUDA sources; two folders have no file of one name."""
    paths = {file.path: file.content for file in pack("mma_fused")[geometry].sources if ".cu" in file.path}
    named = {Path(path).name: text for path, text in paths.items()}
    assert len(named) == len(paths), sorted(paths)
    return named


def host_sources(of):
    """File name -> text: the device code, with the host's stand-ins for CUDA and for the files of instructions.

    of: sizes, or None for the first definition's.
    """
    packed = cuda_files("full")
    texts = {name: text for name, text in packed.items() if name.endswith(".cuh")}
    texts |= {"problem.cuh": problem(of), "interface.cuh": interface(of)} if of else {}
    layer = packed["fused_layer.cu"]
    layer = layer[: layer.index("cudaError_t prepare_fused_layer")]
    declared = "extern __shared__ __align__(1024) uint8_t smem_base[];"
    assert layer.count(declared) == 1
    texts["fused_layer_on_host.cuh"] = layer.replace(declared, "uint8_t* smem_base = shared_memory();")
    stand_in = f'#include "{SAMPLES / "mma_on_host.h"}"\n'
    return texts | dict.fromkeys(("cuda.h", "cuda_runtime.h", "ptx.cuh", "numerics.cuh"), "#pragma once\n" + stand_in)


def h_index(inter):
    """[I] int64: where a row's columns lie."""
    column = torch.arange(inter)
    step, t, j = column // 128, column % 128 // 32, column % 32 // 8
    return step * 128 + (4 * j + t) * 8 + column % 8


def h_of(h, scale, rows):
    """h [rows, I] fp32 of its fp16 values [most rows, I] and scales [most rows, I / 32]."""
    h = h[: len(rows.token)].float()[:, h_index(h.shape[1]).to(h.device)]
    return h * scale[: len(h)].repeat_interleave(32, 1)


def rows_of(of, arguments):
    """What routing should give: chosen [T, E_local], weight [T, E_local], rows."""
    chosen, weight = stages.reference_choice(of, arguments)
    return chosen, weight, stages.expected_rows(chosen, PADDED, of["top_k"], CHUNK_ROWS)


def first_fault(of, arguments, output, h, h_scale):
    """The first stage whose result is wrong, and where; None if all are right.

    output [T, H]: the layer's. h, h_scale: as in the scratch, [most rows, ...].
    """
    chosen, weight, rows = rows_of(of, arguments)
    real = rows.real
    got = h_of(h, h_scale, rows)
    if real.any():
        up, gate = stages.reference_halves(of, arguments, rows)
        row_weight = weight[rows.token, rows.expert][:, None]
        want = torch.nn.functional.silu(gate) * up * row_weight
        if fault := stages.differing(got[real], want[real], H_ERROR, "row that is no padding"):
            return f"gemm1 + swiglu_quant: {fault}"
    if (wrong := ~torch.isin(h_scale[: len(got)].frexp().mantissa, h_scale.new_tensor([0.5]))).any():
        return f"gemm1 + swiglu_quant: {int(wrong.sum())} scales are not powers of two"
    found = stages.ReadOut(chosen, weight, rows, {}, got, 1)
    want = stages.combined(stages.reference_y(arguments, found).float(), rows.token_rows)
    fault = stages.differing(output, want, BF16_ERROR, "token")
    return f"gemm2 + combine: {fault}" if fault else None


def to_bytes(of, arguments):
    """The tensors one after the other, each padded to 16 bytes: what the host's program reads."""
    names = ["topk_ids", "topk_weights"] if of["routed"] else ["routing_logits", "routing_bias"]
    names += ["hidden_states", "hidden_states_scale"]
    names += [f"gemm{gemm}_weights{scale}" for gemm in (1, 2) for scale in ("", "_scale")]
    parts = []
    for name in names:
        raw = arguments[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        parts.append(raw + bytes(-len(raw) % 16))
    return b"".join(parts)


def from_bytes(raw, of, num_tokens):
    """output [T, H] bf16, h [most rows, I] fp16, h_scale [most rows, I / 32] of what that program writes."""
    hidden, inter = of["hidden_size"], of["intermediate_size"]
    data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    at = num_tokens * hidden * 2
    rows = (len(data) - at) // (inter * 2 + inter // 32 * 4)
    output = data[:at].view(torch.bfloat16).view(num_tokens, hidden)
    h = data[at : at + rows * inter * 2].view(torch.float16).view(rows, inter)
    scale = data[at + rows * inter * 2 :].clone().view(torch.float32).view(rows, inter // 32)
    assert math.prod(scale.shape) == rows * inter // 32
    return output, h, scale


def stage_sources(geometry, of=None):
    """File name -> text of the test build for a definition, which hands out its scratch. of: other sizes."""
    texts = cuda_files(geometry)
    texts |= {"problem.cuh": problem(of), "interface.cuh": interface(of)} if of else {}
    return texts | {"run.cuh": texts.pop("run.cu"), "stages.cu": (SAMPLES / "mma_stages.cu").read_text()}


def flags(configuration):
    """Of nvcc or a C++ compiler."""
    return [
        f"-DMMA_FUSED_{name}={value}" for name, value in zip(("SMEM_KIB", "TMA", "CVT"), configuration, strict=True)
    ]


def main(path):
    library, of = load_library(path), LAYERS["ds"]
    for num_tokens in COUNTS:
        given = stages.tokens(of, num_tokens, "cpu") | stages.weights(of, "cpu")
        there = {name: value.cuda() if torch.is_tensor(value) else value for name, value in given.items()}
        output, arrays, _ = stages.call(library, of, there, 0)
        h = arrays["h"].cpu().view(torch.float16).view(-1, of["intermediate_size"])
        scale = arrays["h_scale"].cpu().view(torch.float32).view(-1, of["intermediate_size"] // 32)
        fault = first_fault(of, given, output.cpu(), h, scale)
        print(f"T={num_tokens}: {fault or 'every stage is right'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""mma_fused's sources for a small layer and for a host that runs them, and what its h and output should be."""

import math

import hopper_stages as stages
import torch
from harness.packing.pack import pack

SAMPLES = stages.SAMPLE.parent
DS = {"num_experts": 128, "num_local_experts": 40, "top_k": 8, "num_groups": 8, "kept_groups": 4, "renorm": False}
RENORM = {"num_experts": 128, "num_local_experts": 128, "top_k": 10, "num_groups": 1, "kept_groups": 1, "renorm": True}
# K steps that are no multiple of the warps; 10 column tiles
LAYERS = {
    "ds": DS | {"hidden_size": 640, "intermediate_size": 384},
    "renorm": RENORM | {"hidden_size": 256, "intermediate_size": 128},
}
CPP = {"num_experts": "Experts", "num_local_experts": "Local", "top_k": "TopK", "num_groups": "RoutingGroups"}
CPP |= {"kept_groups": "KeptGroups", "hidden_size": "Hidden", "intermediate_size": "Inter"}
# shared memory in KiB, TMA, cvt -> architectures that are built like that
CONFIGURATIONS = {
    (227, 1, 1): "sm_90",
    (163, 0, 0): "sm_80",
    (99, 0, 0): "sm_86",
    (99, 0, 1): "sm_89",
    (99, 1, 1): "sm_120",
}
PADDED, CHUNK_ROWS = 8, 24  # an expert's rows are padded to a multiple, and cut
H_ERROR, BF16_ERROR = 2e-3, 5e-3  # of 128 columns, relative to their norm


def problem(of):
    """Text of problem.cuh."""
    lines = [f"constexpr int k{symbol} = {of[key]};" for key, symbol in CPP.items()]
    return "\n".join(["#pragma once", *lines, f"constexpr bool kRenorm = {str(of['renorm']).lower()};", ""])


def host_sources(of):
    """File name -> text: the device code, with the host's stand-ins for CUDA and for the files of instructions.

    of: sizes, or None for the first definition's.
    """
    packed = {file.path: file.content for file in pack("mma_fused")["full"].sources}
    texts = {path: text for path, text in packed.items() if path.endswith(".cuh")}
    texts |= {"problem.cuh": problem(of)} if of else {}
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
    routing = (arguments[name] for name in ("routing_logits", "routing_bias"))
    scalars = (arguments["local_expert_offset"], arguments["routed_scaling_factor"])
    chosen, weight = stages.reference_route(of, *routing, *scalars)
    return chosen, weight, stages.expected_rows(chosen, PADDED, of["top_k"], CHUNK_ROWS)


def first_fault(of, arguments, output, h, h_scale):
    """The first stage whose result is wrong, and where; None if all are right.

    output [T, H]: the layer's. h, h_scale: as in the scratch, [most rows, ...].
    """
    chosen, weight, rows = rows_of(of, arguments)
    real = rows.real
    experts = arguments["gemm1_weights"], arguments["gemm1_weights_scale"]
    x = arguments["hidden_states"], arguments["hidden_states_scale"]
    got = h_of(h, h_scale, rows)
    if real.any():
        g = stages.gemm1_ref(*x, *experts, rows.permutation, rows.align)
        up, gate = g.float().chunk(2, dim=-1)
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


def to_bytes(arguments):
    """The tensors one after the other, each padded to 16 bytes: what the host's program reads."""
    names = ["routing_logits", "routing_bias", "hidden_states", "hidden_states_scale"]
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


def stage_sources(geometry):
    """Path -> text of the test build for a definition, which hands out its scratch."""
    packed = {file.path: file.content for file in pack("mma_fused")[geometry].sources}
    texts = {path: text for path, text in packed.items() if path.endswith((".cu", ".cuh"))}
    return texts | {"run.cuh": texts.pop("run.cu"), "stages.cu": (SAMPLES / "mma_stages.cu").read_text()}


def flags(configuration):
    """Of nvcc or a C++ compiler."""
    return [
        f"-DMMA_FUSED_{name}={value}" for name, value in zip(("SMEM_KIB", "TMA", "CVT"), configuration, strict=True)
    ]

"""mma_fused's one launch as a program of the host: mma_on_host.h stands in for CUDA, mma_layer.cc
runs a grid.
"""

import subprocess
from pathlib import Path

import mma_small_layer as small
import torch

HERE = Path(__file__).parent
LAYER = HERE / "mma_layer.cc"
_PTX = (
    "barrier",
    "counter",
    "cp_async",
    "fp16",
    "l2",
    "ld_global",
    "mma",
    "pdl",
    "read_bits",
    "smem_addr",
    "tma",
)
STANDS_IN_FOR = (
    "cuda.h",
    "cuda_runtime.h",
    *(f"{name}.cuh" for name in ("launch", "numerics", *_PTX)),
)
SHARED_MEMORY = "extern __shared__ __align__(1024) uint8_t smem_base[];"


def sources(of, layer_key="full"):
    """File name -> text of the device code. of: a layer's sizes, or None for the definition's."""
    packed = small.cuda_files(layer_key)
    texts = {
        name: text for name, text in packed.items() if name.endswith(".cuh")
    } | small.size_files(of)
    kernel = packed["fused_layer.cu"]
    kernel = kernel[: kernel.index("cudaError_t prepare_fused_layer")] + "}\n"  # its namespace's
    assert kernel.count(SHARED_MEMORY) == 1
    texts["fused_layer_on_host.cuh"] = kernel.replace(
        SHARED_MEMORY, "uint8_t* smem_base = shared_memory();"
    )
    return texts | dict.fromkeys(
        STANDS_IN_FOR, f'#pragma once\n#include "{HERE / "mma_on_host.h"}"\n'
    )


def build(texts, main, configuration, folder, *flags):
    """The program that the C++ file `main` makes with these sources; they and it are put into
    folder.
    """
    for name, text in texts.items():
        (folder / name).write_text(text)
    command = [
        "c++",
        "-std=c++20",
        "-O1",
        "-w",
        f"-I{folder}",
        *small.flags(configuration),
        *flags,
        main,
    ]
    subprocess.run([*command, "-o", folder / "program"], check=True)
    return folder / "program"


def launch(program, of, arguments, ctas, folder):
    """The finished process of LAYER's program, and what it wrote: output, h and h_scale as
    small.first_fault has them.

    folder: of the files that go to it and come back.
    """
    (folder / "in").write_bytes(to_bytes(of, arguments))
    num_tokens = len(arguments["hidden_states"])
    scalars = (arguments["local_expert_offset"], arguments.get("routed_scaling_factor", 1.0))
    command = map(str, [program, folder / "in", folder / "out", ctas, num_tokens, *scalars])
    (folder / "out").unlink(missing_ok=True)
    done = subprocess.run(list(command), capture_output=True, text=True, timeout=300)
    assert (folder / "out").exists(), done.stderr
    return done, from_bytes((folder / "out").read_bytes(), of, num_tokens)


def to_bytes(of, arguments):
    """The tensors one after the other, each padded to 16 bytes."""
    names = ["topk_ids", "topk_weights"] if of["routed"] else ["routing_logits", "routing_bias"]
    names += ["hidden_states", "hidden_states_scale"]
    names += [f"gemm{gemm}_weights{scale}" for gemm in (1, 2) for scale in ("", "_scale")]
    parts = []
    for name in names:
        raw = arguments[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        parts.append(raw + bytes(-len(raw) % 16))
    return b"".join(parts)


def from_bytes(raw, of, num_tokens):
    """output [T, H] bf16, h [most rows, I] fp16, h_scale [most rows, I / 32] fp32."""
    hidden, inter = of["hidden_size"], of["intermediate_size"]
    data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    of_output = num_tokens * hidden * 2
    rows = (len(data) - of_output) // (inter * 2 + inter // 32 * 4)
    output, h, scale = data.split([of_output, rows * inter * 2, rows * inter // 32 * 4])
    return (
        output.view(torch.bfloat16).view(num_tokens, hidden),
        h.view(torch.float16).view(rows, inter),
        scale.clone().view(torch.float32).view(rows, inter // 32),
    )

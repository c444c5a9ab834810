"""mma_fused's one launch as a program of the host: mma_on_host.h stands in for CUDA, mma_layer.cc
runs a grid.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import mma_small_layer as small
import torch
from layer_inputs import WEIGHTS_AND_SCALES
from packed_sources import with_one_replaced

HERE = Path(__file__).parent
LAYER = HERE / "mma_layer.cc"
STANDS_IN_FOR = [
    "cuda.h",
    "cuda_runtime.h",
    "barrier.cuh",
    "counter.cuh",
    "cp_async.cuh",
    "fp16.cuh",
    "l2.cuh",
    "launch.cuh",
    "ld_global.cuh",
    "mma.cuh",
    "numerics.cuh",
    "pdl.cuh",
    "read_bits.cuh",
    "smem_addr.cuh",
    "tma.cuh",
]
SHARED_MEMORY = "extern __shared__ __align__(1024) uint8_t smem_base[];"


def sources(layer, layer_key="full"):
    """Return file name -> text of the device code. layer: its sizes, or None for the
    definition's.
    """
    packed = small.cuda_files(layer_key, layer)
    texts = {name: text for name, text in packed.items() if name.endswith(".cuh")}
    kernel, _, _ = packed["fused_layer.cu"].partition("cudaError_t prepare_fused_layer")
    kernel += "}\n"  # its namespace's
    texts["fused_layer_on_host.cuh"] = with_one_replaced(
        kernel, SHARED_MEMORY, "uint8_t* smem_base = shared_memory();"
    )
    stand_in = f'#pragma once\n#include "{HERE / "mma_on_host.h"}"\n'
    return texts | dict.fromkeys(STANDS_IN_FOR, stand_in)


def build(texts, main, configuration, folder, *flags):
    """Return the program that the C++ file `main` makes with these sources; they and it are put
    into folder.
    """
    for name, text in texts.items():
        (folder / name).write_text(text)
    program = folder / "program"
    sizes = small.flags(configuration)
    options = ["-std=c++20", "-O1", "-w", f"-I{folder}", *sizes, *flags]
    subprocess.run(["c++", *options, main, "-o", program], check=True)
    return program


@dataclass
class Launch:
    """What a run of LAYER's program wrote."""

    process: subprocess.CompletedProcess
    output: torch.Tensor  # [T, H] bf16
    h: torch.Tensor  # [most rows, I] fp16
    h_scale: torch.Tensor  # [most rows, I / 32] fp32

    @property
    def split_tiles(self):
        """How many tiles were split along K."""
        return int(self.process.stdout)

    def first_fault(self, layer, arguments):
        """Return the first stage that is wrong, or None."""
        return small.first_fault(layer, arguments, self.output, self.h, self.h_scale)


def launch(program, layer, arguments, ctas, folder):
    """Run LAYER's program. folder: of the files that go to it and come back."""
    num_tokens = len(arguments["hidden_states"])
    factor = arguments.get("routed_scaling_factor", 1.0)
    (folder / "in").write_bytes(to_bytes(layer, arguments))
    (folder / "out").unlink(missing_ok=True)
    command = [program, folder / "in", folder / "out", ctas, num_tokens]
    command += [arguments["local_expert_offset"], factor]

    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)

    assert (folder / "out").exists(), done.stderr
    return Launch(done, *from_bytes((folder / "out").read_bytes(), layer, num_tokens))


def to_bytes(layer, arguments):
    """Return the tensors one after the other, each padded to 16 bytes."""
    routed = ["topk_ids", "topk_weights"]
    logits = ["routing_logits", "routing_bias"]
    names = routed if layer["routed"] else logits
    names += ["hidden_states", "hidden_states_scale", *WEIGHTS_AND_SCALES]

    parts = []
    for name in names:
        flat = arguments[name].contiguous().view(-1)
        raw = flat.view(torch.uint8).numpy().tobytes()
        parts.append(raw + bytes(-len(raw) % 16))
    return b"".join(parts)


def from_bytes(raw, layer, num_tokens):
    """Return output [T, H] bf16, h [most rows, I] fp16, h_scale [most rows, I / 32] fp32."""
    hidden = layer["hidden_size"]
    inter = layer["intermediate_size"]
    data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    output_bytes = num_tokens * hidden * 2
    h_bytes = inter * 2
    scale_bytes = inter // 32 * 4
    rows = (len(data) - output_bytes) // (h_bytes + scale_bytes)

    sizes = [output_bytes, rows * h_bytes, rows * scale_bytes]
    output, h, scale = data.split(sizes)
    return (
        output.view(torch.bfloat16).view(num_tokens, hidden),
        h.view(torch.float16).view(rows, inter),
        scale.clone().view(torch.float32).view(rows, inter // 32),
    )

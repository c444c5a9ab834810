"""Compile every kernel that a Triton solution launches, for an architecture that is not here.

The solution's own host code runs on tensors without storage, under a Triton driver that claims the
wanted architecture and launches nothing. What is compiled is therefore what a user's machine would
compile: tiles, warps, stages and specialisation of the arguments are the solution's, not a copy.

Run as a command in a process without TRITON_INTERPRET (it changes what `triton.jit` makes):
    python tests/ahead_of_time.py SOURCES ENTRY_POINT ARCHITECTURE TOKENS...
prints one JSON object a compiled kernel.
"""

import importlib
import inspect
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget

HIDDEN, INTERMEDIATE, EXPERTS, LOCAL = 7168, 2048, 256, 32
BF16_HIDDEN, BF16_INTERMEDIATE, BF16_EXPERTS, TOP_K = 2048, 768, 128, 8
MXFP8_N, MXFP8_K = 4096, 7168
MULTIPROCESSORS = {"sm_90": 132, "sm_100": 148}


class _Driver:
    """As much of a Triton driver as compiling asks for."""

    def __init__(self, capability):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def arguments(num_tokens):
    """The layer's arguments at full width, without storage."""

    def fp8(*shape):
        return torch.empty(shape, dtype=torch.float8_e4m3fn, device="meta")

    def fp32(*shape):
        return torch.empty(shape, dtype=torch.float32, device="meta")

    def bf16(*shape):
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    h, i = HIDDEN // 128, INTERMEDIATE // 128
    return (
        fp32(num_tokens, EXPERTS),
        bf16(EXPERTS),
        fp8(num_tokens, HIDDEN),
        fp32(h, num_tokens),
        fp8(LOCAL, 2 * INTERMEDIATE, HIDDEN),
        fp32(LOCAL, 2 * i, h),
        fp8(LOCAL, HIDDEN, INTERMEDIATE),
        fp32(LOCAL, h, i),
        96,
        2.5,
        bf16(num_tokens, HIDDEN),
    )


def bf16_arguments(num_tokens):
    """The bf16 layer's arguments at full width, without storage."""

    def meta(dtype, *shape):
        return torch.empty(shape, dtype=dtype, device="meta")

    return (
        meta(torch.bfloat16, num_tokens, BF16_HIDDEN),
        meta(torch.int32, num_tokens, TOP_K),
        meta(torch.float32, num_tokens, TOP_K),
        meta(torch.bfloat16, BF16_EXPERTS, 2 * BF16_INTERMEDIATE, BF16_HIDDEN),
        meta(torch.bfloat16, BF16_EXPERTS, BF16_HIDDEN, BF16_INTERMEDIATE),
        meta(torch.bfloat16, num_tokens, BF16_HIDDEN),
    )


def mxfp8_arguments(num_tokens):
    """The MXFP8 linear layer's arguments at full width, without storage."""

    def meta(dtype, *shape):
        return torch.empty(shape, dtype=dtype, device="meta")

    return (
        meta(torch.bfloat16, num_tokens, MXFP8_K),
        meta(torch.float8_e4m3fn, MXFP8_N, MXFP8_K),
        meta(torch.int8, MXFP8_N, MXFP8_K // 32),
        meta(torch.bfloat16, num_tokens, MXFP8_N),
    )


def resources(cubin):
    """(registers, bytes of stack, bytes of local memory) of a kernel, as cuobjdump reads them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", text).groups()))


def compile_all(run, architecture, token_counts):
    """Compile what `run` launches for these token counts; yield a dict for each distinct kernel."""
    major, minor = divmod(int(architecture.removeprefix("sm_")), 10)
    triton.runtime.driver.set_active(_Driver(10 * major + minor))
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(
        major=major, minor=minor, multi_processor_count=MULTIPROCESSORS[architecture]
    )
    seen = set()
    found = []
    jit_run = triton.JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = jit_run(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            registers, stack, local = resources(kernel.asm["cubin"])
            ptx = kernel.asm["ptx"]
            constants = {n: v for n, v in kwargs.items() if n in self.arg_names and n.isupper()}
            found.append(
                {
                    "kernel": self.__name__,
                    "constants": constants,
                    "num_warps": kernel.metadata.num_warps,
                    "num_stages": kernel.metadata.num_stages,
                    "shared": kernel.metadata.shared,
                    "registers": registers,
                    "stack": stack,
                    "local": local,
                    "wgmma": "wgmma.mma_async" in ptx,
                    "block_scaled_mma": "tcgen05.mma" in ptx and ".block_scale" in ptx,
                    "bulk_tensor_copy": "cp.async.bulk.tensor" in ptx,
                }
            )
        return kernel

    triton.JITFunction.run = compile_only
    parameters = inspect.signature(run).parameters
    make = bf16_arguments if "expert_ids" in parameters else mxfp8_arguments if "x" in parameters else arguments
    for num_tokens in token_counts:
        found.clear()
        run(*make(num_tokens))
        for kernel in found:
            yield {"num_tokens": num_tokens} | kernel


def main():
    sources, entry_point, architecture, *token_counts = sys.argv[1:]
    path, function = entry_point.split("::")
    root = Path(sources)
    sys.path.insert(0, str(root.parent))
    module = importlib.import_module(f"{root.name}.{path.removesuffix('.py').replace('/', '.')}")
    for kernel in compile_all(getattr(module, function), architecture, map(int, token_counts)):
        print(json.dumps(kernel, default=str), flush=True)  # a constant may be a dtype


if __name__ == "__main__":
    main()

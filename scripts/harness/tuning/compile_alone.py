"""Compile the Triton grouped GEMMs for a GPU that this machine need not have. Imports nothing of this repository.

    python compile_alone.py PACKAGE ARCHITECTURE SIZES < VARIANTS

in a process without TRITON_INTERPRET, which changes what `triton.jit` makes. PACKAGE is the folder of the built
triton_fused_v2, SIZES a JSON object (local_experts, hidden, intermediate), VARIANTS one JSON object per line (see
harness.tuning.space). Prints one line of JSON for each: the resources of a thread block, or why it did not compile.
The binaries land in Triton's cache on disk, where a run on that GPU finds them: the module has the same name there.
"""

import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

TOKENS, TOP_K = 1024, 8  # any number of tokens gives the same code


class ClaimedDriver:
    """The part of a Triton driver that compiling needs."""

    def __init__(self, capability):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def claim(architecture):
    """Make Triton compile for an architecture ("sm_90") from now on; return (major, minor)."""
    major, minor = divmod(int(architecture.removeprefix("sm_")), 10)
    triton.runtime.driver.set_active(ClaimedDriver(10 * major + minor))
    return major, minor


def resources(cubin):
    """(registers, bytes of stack, bytes of local memory) of a kernel, as cuobjdump reads them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", text).groups()))


def fp8(*shape):
    return torch.empty(shape, dtype=torch.float8_e4m3fn, device="meta")


def fp32(*shape):
    return torch.empty(shape, dtype=torch.float32, device="meta")


def int32(*shape):
    return torch.empty(shape, dtype=torch.int32, device="meta")


def compile_variant(main, sizes, variant):
    """The kernels that the variant's host function launches, compiled by calling it on tensors without storage."""
    experts, hidden, inter = sizes["local_experts"], sizes["hidden"], sizes["intermediate"]
    kernels = importlib.import_module(f"{main.__package__}.kernels.permute")
    tile = importlib.import_module(f"{main.__package__}.tiles").Tile(*variant["tile"], programs=1)
    tiles = kernels.max_tiles(TOKENS, TOP_K, experts, variant["padded_to"])
    rows = tiles * variant["padded_to"]
    permutation = kernels.Permutation(int32(TOKENS, TOP_K), int32(rows), int32(tiles), int32(1))
    in_order = variant["tma"]
    launched = []
    triton.JITFunction.run = recorder(launched)
    if variant["stage"] == "gemm1":
        x = fp8(TOKENS, hidden), fp32(hidden // 128, TOKENS)
        w = fp8(experts, 2 * inter, hidden), fp32(experts, 2 * inter // 128, hidden // 128)
        function = main.gemm1_swiglu_quant if variant["fused"] else main.gemm1
        function(*x, *w, permutation, tile, in_order)
    else:
        pairs = rows if in_order else TOKENS * TOP_K
        w = fp8(experts, hidden, inter), fp32(experts, hidden // 128, inter // 128)
        y = torch.empty(rows, hidden, dtype=torch.bfloat16, device="meta")
        main.gemm2(fp8(pairs, inter), fp32(pairs, inter // 128), *w, permutation, 0, y, tile, in_order)
    return launched


JIT_RUN = triton.JITFunction.run


def recorder(launched):
    def compile_only(self, *args, grid, warmup, **keywords):
        launched.append(JIT_RUN(self, *args, grid=grid, warmup=True, **keywords))
        return launched[-1]

    return compile_only


def main():
    package, architecture, sizes = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    claim(architecture)
    sys.path.insert(0, str(package.parent))
    solution = importlib.import_module(f"{package.name}.main")
    for line in sys.stdin:
        found = {"error": None}
        try:
            (kernel,) = compile_variant(solution, sizes, json.loads(line))
            registers, stack, local = resources(kernel.asm["cubin"])
            found |= {"shared": kernel.metadata.shared, "registers": registers, "spilled": stack + local}
        except Exception as error:  # whatever the compiler raises is a reason to leave the variant out
            found["error"] = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

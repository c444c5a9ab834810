"""Compile the Triton grouped GEMMs for a GPU that this machine need not have. Imports nothing of this repository.

    python compile_alone.py ARCHITECTURE < VARIANTS

in a process without TRITON_INTERPRET, which changes what `triton.jit` makes. VARIANTS is one JSON object per line:
"package", the folder of a built triton_fused_v2; "sizes", [E_local, H, I, top-k]; "variant", see harness.tuning.space.
Prints one line of JSON for each: the resources of a thread block, or why it did not compile. The binaries land in
Triton's cache on disk, where a run on that GPU finds them: their key is the source and the constants, not the module.
"""

import importlib
import json
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TOKENS = 1024  # any number gives the same code


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
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", text).groups()))


def meta(dtype, *shape):
    return torch.empty(shape, dtype=dtype, device="meta")


def loaded(package):
    """The entry module of a built solution."""
    if str(package.parent) not in sys.path:
        sys.path.insert(0, str(package.parent))
    return importlib.import_module(f"{package.name}.main")


def launch(main, sizes, variant):
    """Call the variant's host functions on tensors without storage."""
    experts, hidden, inter, top_k = sizes
    fp8, fp32, int32 = (partial(meta, dtype) for dtype in (torch.float8_e4m3fn, torch.float32, torch.int32))
    permute = importlib.import_module(main.permute.__module__)
    module = importlib.import_module(f"{main.__package__}.tiles")
    tile = module.Tile(*variant["tile"], programs=variant["tile"][3])
    tiles = permute.max_tiles(TOKENS, top_k, experts, variant["padded_to"])
    rows = tiles * variant["padded_to"]
    permutation = permute.Permutation(int32(TOKENS, top_k), int32(rows), int32(tiles), int32(1), int32(1), None)
    in_order = variant["tma"]
    if variant["stage"] == "gemm1":
        x = fp8(TOKENS, hidden), fp32(hidden // 128, TOKENS)
        w = fp8(experts, 2 * inter, hidden), fp32(experts, 2 * inter // 128, hidden // 128)
        main.first_product(*x, *w, permutation, module.Choice(tile, None, variant["fused"], in_order))
    else:
        pairs = rows if in_order else TOKENS * top_k
        h = fp8(pairs, inter), fp32(pairs, inter // 128)
        w = fp8(experts, hidden, inter), fp32(experts, hidden // 128, inter // 128)
        main.gemm2(*h, *w, permutation, 0, meta(torch.bfloat16, rows, hidden), tile, in_order)


def main():
    (architecture,) = sys.argv[1:]
    claim(architecture)
    jit_run, launched = triton.JITFunction.run, []

    def compile_only(self, *args, grid, warmup, **keywords):
        launched.append(jit_run(self, *args, grid=grid, warmup=True, **keywords))
        return launched[-1]

    triton.JITFunction.run = compile_only
    for line in sys.stdin:
        found, wanted = {"error": None}, json.loads(line)
        launched.clear()
        try:
            launch(loaded(Path(wanted["package"])), wanted["sizes"], wanted["variant"])
            kernel = launched[0]  # swiglu_quant may follow
            registers, stack, local = resources(kernel.asm["cubin"])
            found |= {"shared": kernel.metadata.shared, "registers": registers, "spilled": stack + local}
        except Exception as error:  # whatever the compiler raises is a reason to leave the variant out
            found["error"] = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

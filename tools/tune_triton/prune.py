"""Leave out tiles that cannot run, or not well, by compiling them in child processes before anything is timed.

Needs no GPU. The binaries land in Triton's cache on disk, where the tuner finds them: their key is the source and the
constants, not the module.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import triton
from candidates import Candidate
from gemms import modules
from pebble import ProcessPool
from rich.progress import track
from triton.backends.compiler import GPUTarget

BLOCK_SHARED = 227 * 1024  # bytes that one thread block may have, on sm_90 and sm_100
SM_SHARED = 228 * 1024  # of which every resident block costs 1024 more
SM_REGISTERS = 65536
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TOKENS = 1024  # any number gives the same code
launched, child = [], None  # of a compiling process: the kernels of the last launch, and `launch`


def why_left_out(candidate: Candidate, shared: int, registers: int, spilled: int) -> str | None:
    """Why a candidate that compiles is not worth timing, or None. Bytes a block, registers and bytes a thread."""
    if shared > BLOCK_SHARED:
        return f"shared memory: {shared} bytes, a thread block has {BLOCK_SHARED}"
    if spilled:
        return f"spills: {spilled} bytes a thread"
    block_registers = -(-registers // 8) * 8 * 32 * candidate.num_warps
    fit = min(SM_REGISTERS // block_registers, SM_SHARED // (shared + 1024))
    few = f"does not fit: of {candidate.per_sm} programs a multiprocessor {fit} fit"
    return few if candidate.per_sm > fit else None


def left_out(pool: ProcessPool, wanted: Iterable[Candidate]) -> dict[Candidate, str | None]:
    """Candidate -> why it is left out, None where it stays. pool: of processes that `start` begins."""
    alike = {}  # per_sm only sizes the grid: compiled once for all
    for candidate in wanted:
        alike.setdefault(candidate._replace(per_sm=1), []).append(candidate)
    futures, found = {code: pool.schedule(compiled, [code]) for code in alike}, {}
    for code, same in track(alike.items(), "compiling", disable=not sys.stdout.isatty()):
        try:
            found |= {candidate: why_left_out(candidate, *futures[code].result()) for candidate in same}
        except Exception as error:  # whatever the compiler raises, or its process's end, is a reason
            found |= dict.fromkeys(same, f"does not compile: {type(error).__name__}: {error}".splitlines()[0])
    return found


def launch(solution: ModuleType, sizes: tuple[int, int, int], top_k: int, candidate: Candidate) -> None:
    """Call the candidate's host functions on tensors without storage."""
    local, hidden, inter = sizes
    dtypes = torch.float8_e4m3fn, torch.float32, torch.int32, torch.bfloat16
    fp8, fp32, int32, bf16 = (lambda *s, of=of: torch.empty(s, dtype=of, device="meta") for of in dtypes)
    layer, stage, tiles = modules(solution)
    tile, count = tiles.Tile(*candidate[2:], 1), stage.max_tiles(TOKENS, top_k, local, candidate.block_m)
    rows = count * candidate.block_m
    permutation = stage.Permutation(int32(TOKENS, top_k), int32(rows), int32(count), int32(1), int32(1), None)
    if candidate.stage == "gemm1":
        x = fp8(TOKENS, hidden), fp32(hidden // 128, TOKENS)
        w = fp8(local, 2 * inter, hidden), fp32(local, 2 * inter // 128, hidden // 128)
        layer.gemm1_swiglu(*x, *w, permutation, tiles.Choice(tile, None, candidate.fused, True))
    else:
        h, w = (fp8(rows, inter), fp32(rows, inter // 128)), fp8(local, hidden, inter)
        w_scale, y = fp32(local, hidden // 128, inter // 128), bf16(rows, hidden)
        layer.gemm2(*h, w, w_scale, permutation, 0, y, tile, True)


def start(architecture: str, package: Path, sizes: tuple[int, int, int], top_k: int) -> None:
    """Make this process's Triton compile for an architecture ("sm_90"), whatever GPU is here, and launch nothing.

    package: the folder of a triton_fused_v2 that FIB has built for `sizes`: local experts, hidden, intermediate.
    """
    global child
    target = GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
    driver = {"target": lambda: target, "device": lambda: 0, "stream": lambda device: 0}
    claimed = SimpleNamespace(**{f"get_current_{what}": answer for what, answer in driver.items()})
    triton.runtime.driver.set_active(claimed)
    jit_run = triton.JITFunction.run

    def compile_only(self, *args, grid, warmup, **keywords):
        launched.append(jit_run(self, *args, grid=grid, warmup=True, **keywords))
        return launched[-1]

    triton.JITFunction.run = compile_only
    sys.path.insert(0, str(package.parent))
    import_module(f"{package.name}.common.host.launch").SUPPORTED = False  # its short way around JITFunction.run
    solution = import_module(f"{package.name}.main")
    child = partial(launch, solution, sizes, top_k)


def compiled(candidate: Candidate) -> tuple[int, int, int]:
    """Bytes of shared memory a block, registers a thread and bytes a thread that leave them, as cuobjdump has them."""
    launched.clear()
    child(candidate)
    kernel = launched[0]  # swiglu_quant may follow
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack, local = map(int, re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", text).groups())
    return kernel.metadata.shared, registers, stack + local

"""Leave out tiles that cannot run, or not well, by compiling them in child processes before
anything is timed.

Needs no GPU. The binaries land in Triton's cache on disk, where the tuner finds them: their key is
the source and the constants, not the module.
"""

import re
import subprocess
import sys
import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from candidates import Candidate, choice_of
from gemms import gemm2, operands, prepare
from moebench.judging.calling import first_line
from pebble import ProcessPool
from rich.progress import track
from triton.backends.compiler import GPUTarget

SM_SHARED = 228 * 1024  # bytes on sm_90 and sm_100; every resident block takes 1024 beside its own
SM_REGISTERS = 65536
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)")  # of `cuobjdump -res-usage`

# Of a compiling process: the launches of a call, each of which compiles, and a layer whose tensors
# have no storage.
launches = []
layer = None


def why_left_out(candidate: Candidate, shared: int, registers: int, spilled: int) -> str | None:
    """Return why a candidate that compiles is not worth timing, or None.

    shared: bytes a block. registers, spilled: registers and bytes a thread.
    """
    if spilled:
        return f"spills: {spilled} bytes a thread"
    rounded_registers = -(-registers // 8) * 8
    block_registers = rounded_registers * 32 * candidate.num_warps
    fitting = min(SM_REGISTERS // block_registers, SM_SHARED // (shared + 1024))
    if candidate.per_sm > fitting:
        return f"does not fit: of {candidate.per_sm} programs a multiprocessor {fitting} fit"
    return None


def left_out(pool: ProcessPool, wanted: list[Candidate]) -> dict[Candidate, str | None]:
    """Return why each candidate is left out, None where it stays.

    pool: of processes that `start` begins.
    """
    # These size the grid and change no code, so that candidates share what is compiled.
    compiled_as = {candidate: candidate._replace(per_sm=1, programs=1) for candidate in wanted}
    compiling = {}
    for each in dict.fromkeys(compiled_as.values()):
        compiling[each] = pool.schedule(compiled, [each])

    reasons = {}
    for candidate in track(wanted, "compiling", disable=not sys.stdout.isatty()):
        try:
            used = compiling[compiled_as[candidate]].result()
            reasons[candidate] = why_left_out(candidate, *used)
        except Exception as error:  # whatever the compiler raises, or its process's end
            reasons[candidate] = f"does not compile: {first_line(error)}"
    return reasons


def start(architecture: str, package: Path, sizes: tuple[int, int, int], top_k: int) -> None:
    """Make this process's Triton compile for an architecture, whatever GPU is here.

    Nothing is launched. architecture: as "sm_90". package: the folder of a triton_fused_v2 that
    FIB has built for `sizes`: local experts, hidden, intermediate.
    """
    global layer
    target = GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
    driver = SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
    )
    triton.runtime.driver.set_active(driver)

    def keep_launch(kernel, grid):
        def launch(*args, **keywords):
            launches.append(partial(kernel.warmup, *args, grid=grid, **keywords))

        return launch

    triton.JITFunction.__getitem__ = keep_launch
    sys.path.insert(0, str(package.parent))
    launch_module = import_module(f"{package.name}.common.host.launch")
    launch_module.SUPPORTED = False  # its short way around JITFunction

    expert = torch.zeros(1024, top_k, dtype=torch.int32)  # any number of tokens gives the same code
    layer = prepare(package.name, operands(sizes, len(expert), "meta"), expert)


def compiled(candidate: Candidate) -> tuple[int, int, int]:
    """Return bytes of shared memory a block, registers a thread and bytes a thread that spill."""
    launches.clear()
    gemm2(layer, choice_of(candidate, candidate))
    compile_kernel = launches[0 if candidate.stage == "gemm1" else -1]
    kernel = compile_kernel()

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = map(int, RESOURCES.search(text).groups())
    return kernel.metadata.shared, registers, stack + local

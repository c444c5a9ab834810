"""Find tiles that cannot run, or would run badly, by compiling them before anything is timed.

tune.py makes a pool of processes, each begun by `start`, and calls `left_out`. Compiling needs no
GPU. The binaries go to Triton's cache on disk, where tune.py's process finds them later: the key is
the kernel's source and constants.
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
from moebench.core.errors import first_line
from pebble import ProcessPool
from rich.progress import track
from triton.backends.compiler import GPUTarget

# bytes on sm_90 and sm_100; every resident block takes 1024 beside its own
SM_SHARED = 228 * 1024
SM_REGISTERS = 65536
# a line of `cuobjdump -res-usage`
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)")

# In a compiling process: functions that compile what a call would launch, and a layer whose tensors
# have no storage.
launches = []
layer = None


def why_left_out(
    candidate: Candidate, shared: int, registers: int, spilled: int
) -> str | None:
    """Return why a candidate that compiles is not worth timing, or None if it is.

    shared: bytes of shared memory of a block. registers: of a thread. spilled: bytes of a thread.
    """
    if spilled:
        return f"spills: {spilled} bytes a thread"
    rounded_registers = -(-registers // 8) * 8
    block_registers = rounded_registers * 32 * candidate.num_warps
    fitting = min(SM_REGISTERS // block_registers, SM_SHARED // (shared + 1024))
    if candidate.per_sm > fitting:
        return f"does not fit: of {candidate.per_sm} programs a multiprocessor {fitting} fit"
    return None


def same_binary(candidate: Candidate) -> Candidate:
    """Return the candidate that is compiled for all that share its binary: per_sm and programs size
    the grid and change no code.
    """
    return candidate._replace(per_sm=1, programs=1)


def left_out(pool: ProcessPool, wanted: list[Candidate]) -> dict[Candidate, str | None]:
    """Return candidate -> why it is not to be timed, or None.

    pool: processes whose initializer is `start`.
    """
    compiling = {}
    for candidate in wanted:
        binary = same_binary(candidate)
        if binary not in compiling:
            compiling[binary] = pool.schedule(compiled, [binary])

    reasons = {}
    for candidate in track(wanted, "compiling", disable=not sys.stdout.isatty()):
        try:
            used = compiling[same_binary(candidate)].result()
            reasons[candidate] = why_left_out(candidate, *used)
        except Exception as error:  # any: of the compiler, or because its process died
            reasons[candidate] = f"does not compile: {first_line(error)}"
    return reasons


def start(
    architecture: str, package: Path, sizes: tuple[int, int, int], top_k: int
) -> None:
    """Make Triton in this process compile for an architecture, and launch nothing.

    architecture: such as "sm_90". package: folder of the triton_fused_v2 that FIB has built. sizes:
    local experts, hidden size and intermediate size that it was built for.
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
    launch_module.SUPPORTED = False  # else launch_quickly would bypass JITFunction

    # any number of tokens gives the same code
    num_tokens = 1024
    expert = torch.zeros(num_tokens, top_k, dtype=torch.int32)
    tensors = operands(sizes, num_tokens, "meta")
    layer = prepare(package.name, tensors, expert)


def compiled(candidate: Candidate) -> tuple[int, int, int]:
    """Compile a candidate; return shared bytes of a block, registers and spilled bytes a thread."""
    launches.clear()
    gemm2(layer, choice_of(candidate, candidate))
    compile_kernel = launches[0 if candidate.stage == "gemm1" else -1]
    kernel = compile_kernel()

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True)

    numbers = RESOURCES.search(usage.stdout).groups()
    registers, stack, local = map(int, numbers)
    return kernel.metadata.shared, registers, stack + local

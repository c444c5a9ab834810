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
launched, given = (
    [],
    None,
)  # of a compiling process: the launches of a call, each compiles; tensors without storage


def why_left_out(candidate: Candidate, shared: int, registers: int, spilled: int) -> str | None:
    """Why a candidate that compiles is not worth timing, or None. Bytes a block, registers and
    bytes a thread.
    """
    if spilled:
        return f"spills: {spilled} bytes a thread"
    block_registers = -(-registers // 8) * 8 * 32 * candidate.num_warps
    fit = min(SM_REGISTERS // block_registers, SM_SHARED // (shared + 1024))
    if candidate.per_sm > fit:
        return f"does not fit: of {candidate.per_sm} programs a multiprocessor {fit} fit"
    return None


def left_out(pool: ProcessPool, wanted: list[Candidate]) -> dict[Candidate, str | None]:
    """Candidate -> why it is left out, None where it stays. pool: of processes that `start`
    begins.
    """
    code = {
        candidate: candidate._replace(per_sm=1, programs=1) for candidate in wanted
    }  # these size the grid
    compiling = {each: pool.schedule(compiled, [each]) for each in dict.fromkeys(code.values())}
    found = {}
    for candidate in track(code, "compiling", disable=not sys.stdout.isatty()):
        try:
            found[candidate] = why_left_out(candidate, *compiling[code[candidate]].result())
        except (
            Exception
        ) as error:  # whatever the compiler raises, or its process's end, is a reason
            found[candidate] = f"does not compile: {first_line(error)}"
    return found


def start(architecture: str, package: Path, sizes: tuple[int, int, int], top_k: int) -> None:
    """Make this process's Triton compile for an architecture ("sm_90"), whatever GPU is here, and
    launch nothing.

    package: the folder of a triton_fused_v2 that FIB has built for `sizes`: local experts, hidden,
    intermediate.
    """
    global given
    target = GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
    driver = {"target": lambda: target, "device": lambda: 0, "stream": lambda device: 0}
    triton.runtime.driver.set_active(
        SimpleNamespace(**{f"get_current_{what}": driver[what] for what in driver})
    )

    def keep(kernel, grid):
        return lambda *args, **keywords: launched.append(
            partial(kernel.warmup, *args, grid=grid, **keywords)
        )

    triton.JITFunction.__getitem__ = keep
    sys.path.insert(0, str(package.parent))
    import_module(
        f"{package.name}.common.host.launch"
    ).SUPPORTED = False  # its short way around JITFunction
    expert = torch.zeros(1024, top_k, dtype=torch.int32)  # any number of tokens gives the same code
    given = prepare(package.name, operands(sizes, len(expert), "meta"), expert)


def compiled(candidate: Candidate) -> tuple[int, int, int]:
    """Bytes of shared memory a block, registers a thread and bytes a thread that leave them, as
    cuobjdump has them.
    """
    launched.clear()
    gemm2(given, choice_of(candidate, candidate))
    kernel = launched[0 if candidate.stage == "gemm1" else -1]()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = map(
        int, re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", text).groups()
    )
    return kernel.metadata.shared, registers, stack + local

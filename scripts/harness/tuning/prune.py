"""Leave out tiles that cannot run, or not well, by compiling them for the architecture; needs no GPU."""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from harness.core.errors import UserError
from harness.tuning.record import Head
from harness.tuning.space import Variant, compiled_as

ARCHITECTURES = ("sm_90", "sm_100")  # the limits below are theirs
BLOCK_SHARED = 227 * 1024  # bytes that one thread block may have
SM_SHARED = 228 * 1024  # of which every resident block costs 1024 more
SM_REGISTERS = 65536
COMPILER = Path(__file__).with_name("compile_alone.py")


def resident_blocks(compiled: dict, num_warps: int) -> int:
    """Thread blocks of a kernel that one multiprocessor holds, by registers and shared memory."""
    registers = -(-compiled["registers"] // 8) * 8 * 32 * num_warps
    return min(SM_REGISTERS // registers, SM_SHARED // (compiled["shared"] + 1024))


def why_left_out(variant: Variant, compiled: dict) -> str | None:
    """Why a variant is not worth timing, "kind: details", or None; compiled: compile_alone.py's answer."""
    if compiled["error"]:
        return f"does not compile: {compiled['error']}"
    if compiled["shared"] > BLOCK_SHARED:
        return f"shared memory: {compiled['shared']} bytes, a thread block has {BLOCK_SHARED}"
    if compiled["spilled"]:
        return f"spills: {compiled['spilled']} bytes a thread leave the registers"
    fit = resident_blocks(compiled, variant.tile.num_warps)
    if variant.tile.per_sm > fit:
        return f"registers and shared memory: {variant.tile.per_sm} programs a multiprocessor, {max(fit, 0)} fit"
    return None


def counts_by_kind(reasons: Iterable[str]) -> str:
    """'474 for spills, 12 for shared memory': how many were left out for which kind of reason; 'none' without any."""
    counts = Counter(reason.partition(":")[0] for reason in reasons)
    return ", ".join(f"{number} for {kind}" for kind, number in counts.most_common()) or "none"


def start_compiler(kernels: list[Variant], command: list) -> subprocess.Popen:
    """A process that compiles these and prints a line of JSON for each, in their order."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["CUDA_VISIBLE_DEVICES"] = ""  # the result does not depend on the GPU of this machine
    with tempfile.TemporaryFile("w+") as wanted:
        wanted.writelines(f"{json.dumps(asdict(kernel))}\n" for kernel in kernels)
        wanted.seek(0)
        return subprocess.Popen(
            command, env=env, text=True, stdin=wanted, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )


def next_answer(process: subprocess.Popen) -> dict:
    """The process's next line; kernels that it had not answered when it died count as not compiling."""
    line = process.stdout.readline()
    return json.loads(line) if line else {"error": f"the compiling process ended with {process.wait()}"}


def left_out(
    variants: Iterable[Variant],
    package: Path,
    head: Head,
    tracked: Callable[[list[Variant]], Iterable[Variant]] = iter,
) -> dict[Variant, str | None]:
    """Variant -> why it is left out, None where it stays.

    package: folder of the built triton_fused_v2. tracked: wraps the kernels to compile, to show progress. Raises
    UserError for an architecture whose limits are not known here.
    """
    if head.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"architecture: got {head.architecture}, the kernels need TMA, want one of {known}")
    variants = list(variants)
    kernels = list(dict.fromkeys(map(compiled_as, variants)))
    command = [sys.executable, COMPILER, package, head.architecture, *map(str, head.sizes)]
    number = max(1, min(os.cpu_count() or 1, len(kernels)))
    processes = []
    try:
        for at in range(number):
            processes.append(start_compiler(kernels[at::number], command))
        compiled = {kernel: next_answer(processes[at % number]) for at, kernel in enumerate(tracked(kernels))}
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return {variant: why_left_out(variant, compiled[compiled_as(variant)]) for variant in variants}

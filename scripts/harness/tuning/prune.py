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
from typing import NamedTuple

from harness.core.errors import UserError
from harness.tuning.space import Variant, compiled_as

ARCHITECTURES = ("sm_90", "sm_100")  # the limits below are theirs
BLOCK_SHARED = 227 * 1024  # bytes that one thread block may have
SM_SHARED = 228 * 1024  # of which every resident block costs 1024 more
SM_REGISTERS = 65536
COMPILER = Path(__file__).with_name("compile_alone.py")


class Target(NamedTuple):
    """What variants are compiled for. package: folder of triton_fused_v2, built for a definition of these sizes."""

    package: Path
    local_experts: int
    hidden: int
    intermediate: int
    top_k: int

    def code(self, variant: Variant) -> tuple:
        """The same for whatever compiles to the same code: the number of experts is no constant of the GEMMs."""
        return self.hidden, self.intermediate, self.top_k, compiled_as(variant)


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


def start_compiler(lines: list[str], architecture: str) -> subprocess.Popen:
    """A process that compiles what these lines of compile_alone.py say and prints an answer for each, in order."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["CUDA_VISIBLE_DEVICES"] = ""  # the result does not depend on the GPU of this machine
    with tempfile.TemporaryFile("w+") as wanted:
        wanted.writelines(lines)
        wanted.seek(0)
        command = [sys.executable, COMPILER, architecture]
        return subprocess.Popen(
            command, env=env, text=True, stdin=wanted, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )


def next_answer(process: subprocess.Popen) -> dict:
    """The process's next line; kernels that it had not answered when it died count as not compiling."""
    line = process.stdout.readline()
    return json.loads(line) if line else {"error": f"the compiling process ended with {process.wait()}"}


def kernels(wanted: dict[Target, list[Variant]]) -> dict[tuple, str]:
    """Target.code -> compile_alone.py's line, for each kernel that these variants need."""
    found = {}
    for target, variants in wanted.items():
        package, *sizes = target
        for variant in variants:
            line = {"package": str(package), "sizes": sizes, "variant": asdict(compiled_as(variant))}
            found.setdefault(target.code(variant), json.dumps(line) + "\n")
    return found


def left_out(
    wanted: dict[Target, list[Variant]],
    architecture: str,
    tracked: Callable[[list[tuple]], Iterable[tuple]] = iter,
) -> dict[Target, dict[Variant, str | None]]:
    """Variant -> why it is left out, None where it stays, of each target. Kernels are compiled on all cores.

    tracked: wraps the kernels to compile, to show progress. Raises UserError for an architecture whose limits are not
    known here.
    """
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"architecture: got {architecture}, the kernels need TMA, want one of {known}")
    lines = kernels(wanted)
    number = max(1, min(os.cpu_count() or 1, len(lines)))
    processes = []
    try:
        for at in range(number):
            processes.append(start_compiler(list(lines.values())[at::number], architecture))
        compiled = {code: next_answer(processes[at % number]) for at, code in enumerate(tracked(list(lines)))}
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return {
        target: {variant: why_left_out(variant, compiled[target.code(variant)]) for variant in variants}
        for target, variants in wanted.items()
    }

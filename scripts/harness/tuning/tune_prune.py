"""Leave out tiles that cannot run, or not well, by compiling them for the architecture; no GPU is asked."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from harness.tuning.tune_space import Variant, compiled_as

ARCHITECTURES = ("sm_90", "sm_100")  # the limits below are theirs
BLOCK_SHARED = 227 * 1024  # bytes that one thread block may have
SM_SHARED = 228 * 1024  # of which every resident block costs 1024 more
SM_REGISTERS = 65536
COMPILER = Path(__file__).with_name("compile_alone.py")


def fitting(found: dict, num_warps: int) -> int:
    """Thread blocks of a kernel that one multiprocessor holds, by registers and shared memory."""
    registers = -(-found["registers"] // 8) * 8 * 32 * num_warps
    return min(SM_REGISTERS // registers, SM_SHARED // (found["shared"] + 1024))


def why_left_out(variant: Variant, found: dict) -> str | None:
    """A line for a variant that is not worth timing; found is compile_alone.py's answer."""
    if found["error"]:
        return f"does not compile: {found['error']}"
    if found["shared"] > BLOCK_SHARED:
        return f"shared memory: {found['shared']} bytes, a thread block has {BLOCK_SHARED}"
    if found["spilled"]:
        return f"spills: {found['spilled']} bytes a thread leave the registers"
    fits = fitting(found, variant.tile.num_warps)
    if variant.tile.per_sm > fits:
        return f"registers and shared memory: {variant.tile.per_sm} programs a multiprocessor, {max(fits, 0)} fit"
    return None


def reason_kind(reason: str) -> str:
    return reason.partition(":")[0]


def counted(reasons: Iterable[str]) -> str:
    """How many were left out, by kind of reason, for the user."""
    counts = Counter(map(reason_kind, reasons))
    return ", ".join(f"{number} ({kind})" for kind, number in counts.most_common()) or "none"


def as_json(variant: Variant) -> str:
    told = {"stage": variant.stage, "fused": variant.fused, "tma": variant.tma, "padded_to": variant.padded_to}
    return json.dumps(told | {"tile": variant.tile._asdict()})


def compile_share(share: list[Variant], command: list, advance: Callable[[], None]) -> list[dict]:
    """One process compiles its share; what it had not answered when it died did not compile."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["CUDA_VISIBLE_DEVICES"] = ""  # what is compiled does not depend on the GPU that is here
    process = subprocess.Popen(
        command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        process.stdin.write("".join(f"{as_json(variant)}\n" for variant in share))
        process.stdin.close()
    except BrokenPipeError:
        pass
    answers = []
    for line in process.stdout:
        answers.append(json.loads(line))
        advance()
    status = process.wait()
    missing = len(share) - len(answers)
    return answers + [{"error": f"the compiling process ended with {status}"}] * missing


def left_out(
    variants: Iterable[Variant],
    package: Path,
    architecture: str,
    sizes: dict[str, int],
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Variant, str | None]:
    """Variant -> why it is left out, None where it stays.

    package: folder of the built triton_fused_v2. sizes: local_experts, hidden, intermediate.
    advance(done, total): told after each kernel that was compiled.
    Raises ValueError for an architecture whose limits are not known here.
    """
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"architecture: got {architecture}, the kernels need TMA, want one of {known}")
    variants = list(variants)
    kernels = list(dict.fromkeys(map(compiled_as, variants)))
    processes = max(1, min(os.cpu_count() or 1, len(kernels)))
    shares = [kernels[at::processes] for at in range(processes)]
    command = [sys.executable, COMPILER, package, architecture, json.dumps(sizes)]
    done, told = Counter(), Lock()
    advance(0, len(kernels))

    def one_more():
        with told:
            done["kernels"] += 1
            advance(done["kernels"], len(kernels))

    with ThreadPoolExecutor(processes) as pool:
        answers = pool.map(lambda share: compile_share(share, command, one_more), shares)
    found = {kernel: answer for share, lines in zip(shares, answers, strict=True)
             for kernel, answer in zip(share, lines, strict=True)}  # fmt: skip
    return {variant: why_left_out(variant, found[compiled_as(variant)]) for variant in variants}

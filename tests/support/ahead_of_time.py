"""Compile every kernel that a Triton solution launches, for an architecture that is not here.

The solution's own host code runs on tensors without storage, under a Triton driver that claims the
wanted architecture and launches nothing. What is compiled is therefore what a user's machine would
compile: tiles, warps, stages and specialisation of the arguments are the solution's, not a copy.

`compiled` runs this file in a process without the interpreter, which changes what `triton.jit` makes:
    TRITON_INTERPRET=0 python tests/support/ahead_of_time.py SOURCES ENTRY_POINT ARCHITECTURE[:GPU] TOKENS...
prints one JSON object a compiled kernel. GPU is the name that the solution is told.
"""

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from harness.packing.pack import pack
from harness.tuning.compile_alone import CUOBJDUMP, claim, resources

HIDDEN, INTERMEDIATE, EXPERTS, LOCAL = 7168, 2048, 256, 32
BF16_HIDDEN, BF16_INTERMEDIATE, BF16_EXPERTS, TOP_K = 2048, 768, 128, 8
MXFP8_N, MXFP8_K = 4096, 7168
MULTIPROCESSORS = {"sm_80": 108, "sm_86": 84, "sm_89": 142, "sm_90": 132, "sm_100": 148, "sm_103": 148, "sm_120": 188}
SHARED_MEMORY = {"sm_90": 227 * 1024, "sm_100": 227 * 1024, "sm_103": 227 * 1024, "sm_120": 99 * 1024}  # of a CTA


def compiled(name, geometry, architecture, token_counts, folder, entry_point=None):
    """What `compile_all` yields for a solution and "sm_90" or "sm_90:NVIDIA H200"; its sources are put into folder.

    entry_point: FILE::FUNCTION, if it is not the definition's.
    """
    solution = pack(name)[geometry]
    for source in solution.sources:
        path = folder / name / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.content)
    # What is compiled does not depend on the GPU that is here.
    env = os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, folder / name, entry_point or solution.spec.entry_point, architecture]
    done = subprocess.run([*command, *map(str, token_counts)], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


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


def routed_arguments(num_tokens):
    """The arguments of the layer behind a router, at full width, without storage."""
    _, _, x, x_scale, *weights, offset, _, output = arguments(num_tokens)
    ids, factors = (
        torch.empty((num_tokens, TOP_K), dtype=dtype, device="meta") for dtype in (torch.int32, torch.float32)
    )
    return (x, x_scale.t().contiguous(), ids, factors, *weights, offset, output)


def routed_bf16_arguments(num_tokens):
    """As `routed_arguments`, for tokens in bf16."""
    x, _, *others = routed_arguments(num_tokens)
    return (x.to(torch.bfloat16), *others)


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


def reloads(cubin):
    """How many instructions read local memory, as spilled registers are; None if this disassembler is too old."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run([CUOBJDUMP, "-sass", file.name], capture_output=True, text=True).stdout
    return len(re.findall(r"\bLDL\b", shown)) if "EXIT" in shown else None


def compile_all(run, architecture, token_counts, gpu):
    """Compile what `run` launches for these token counts on a GPU of this name; yield a dict a distinct kernel."""
    major, minor = claim(architecture)
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(
        major=major, minor=minor, name=gpu, multi_processor_count=MULTIPROCESSORS[architecture]
    )
    seen = set()
    found = []
    jit_run = triton.JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = jit_run(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            registers, stack, _ = resources(kernel.asm["cubin"])
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
                    "reloads": reloads(kernel.asm["cubin"]),
                    "wgmma": "wgmma.mma_async" in ptx,
                    "block_scaled_mma": "tcgen05.mma" in ptx and ".block_scale" in ptx,
                    "bulk_tensor_copy": "cp.async.bulk.tensor" in ptx,
                }
            )
        return kernel

    triton.JITFunction.run = compile_only
    parameters = inspect.signature(run).parameters
    first = {"expert_ids": bf16_arguments, "x": mxfp8_arguments, "routing_logits": arguments}
    routed = routed_arguments if "hidden_states_scale" in parameters else routed_bf16_arguments
    make = next((make for name, make in first.items() if name in parameters), routed)
    for num_tokens in token_counts:
        found.clear()
        run(*make(num_tokens))
        for kernel in found:
            yield {"num_tokens": num_tokens} | kernel


def main():
    sources, entry_point, architecture, *token_counts = sys.argv[1:]
    architecture, _, gpu = architecture.partition(":")
    path, function = entry_point.split("::")
    root = Path(sources)
    sys.path.insert(0, str(root.parent))
    module = importlib.import_module(f"{root.name}.{path.removesuffix('.py').replace('/', '.')}")
    for kernel in compile_all(getattr(module, function), architecture, map(int, token_counts), gpu):
        print(json.dumps(kernel, default=str), flush=True)  # a constant may be a dtype


if __name__ == "__main__":
    main()

"""Compile every kernel that a Triton solution launches, for an architecture that is not here.

The solution's own host code runs on tensors without storage, under a Triton driver that claims the
wanted architecture and launches nothing. What is compiled is therefore what a user's machine would
compile: tiles, warps, stages and specialisation of the arguments are the solution's, not a copy.

`compiled` runs this file in a process without the interpreter, which changes what `triton.jit`
makes:
    TRITON_INTERPRET=0 python tests/support/ahead_of_time.py SOURCES ENTRY_POINT GEOMETRY
    ARCHITECTURE[:GPU] TOKENS...
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
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import layer_inputs
import torch
import triton
from moebench.packing.pack import pack
from triton.backends.compiler import GPUTarget

COUNTED = re.compile(r"\b(?:UTC\w?MMA|[HIOQ]G?MMA|LDTM|STTM|UTMALDG|LDGSTS|LDSM|LDL|STL)\b")
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
MULTIPROCESSORS = {
    "sm_80": 108,
    "sm_86": 84,
    "sm_89": 142,
    "sm_90": 132,
    "sm_100": 148,
    "sm_103": 148,
    "sm_120": 188,
}
SHARED_MEMORY = {
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "sm_103": 227 * 1024,
    "sm_120": 99 * 1024,
}  # of a CTA


def compiled(name, geometry, architecture, token_counts, folder, entry_point=None):
    """What `compile_all` yields for a solution and "sm_90" or "sm_90:NVIDIA H200"; its sources are
    put into folder.

    entry_point: FILE::FUNCTION, if it is not the definition's.
    """
    solution = pack(name)[geometry]
    for source in solution.sources:
        path = folder / name / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.content)
    # What is compiled does not depend on the GPU that is here.
    env = os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    what = [
        folder / name,
        entry_point or solution.spec.entry_point,
        geometry,
        architecture,
        *token_counts,
    ]
    done = subprocess.run(
        [sys.executable, __file__, *map(str, what)],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def arguments_of(run, geometry, num_tokens):
    """What `run` takes of the layer at full width, without storage; tokens in bf16 where it takes
    no scales of them.
    """
    found = layer_inputs.arguments(geometry, num_tokens, "meta", offset=96)
    parameters = inspect.signature(run).parameters
    if "hidden_states" in parameters and "hidden_states_scale" not in parameters:
        found.pop("hidden_states_scale", None)
        found["hidden_states"] = found["hidden_states"].to(torch.bfloat16)
    return found.values()


def disassembled(cubin, option):
    """What cuobjdump says of a kernel's bytes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([CUOBJDUMP, option, file.name], capture_output=True, text=True).stdout


def resources(text):
    """Name -> (registers, bytes of stack, bytes of local memory) of each kernel in what `cuobjdump
    -res-usage` says.
    """
    found = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", text)
    return {name: tuple(map(int, numbers)) for name, *numbers in found}


def instructions(cubin):
    """Opcode -> how many there are: of tensor cores, copies and local memory; None if this
    disassembler is too old.
    """
    shown = disassembled(cubin, "-sass")
    return Counter(COUNTED.findall(shown)) if "EXIT" in shown else None


def compile_all(run, geometry, architecture, token_counts, gpu):
    """Compile what `run` launches for these token counts on a GPU of this name; yield a dict a
    distinct kernel.
    """
    major, minor = divmod(int(architecture.removeprefix("sm_")), 10)
    target = GPUTarget("cuda", 10 * major + minor, 32)
    triton.runtime.driver.set_active(
        SimpleNamespace(  # as much of a driver as compiling needs
            get_current_target=lambda: target,
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
        )
    )
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
            ((registers, stack, _),) = resources(
                disassembled(kernel.asm["cubin"], "-res-usage")
            ).values()
            ptx, mix = kernel.asm["ptx"], instructions(kernel.asm["cubin"])
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
                    "instructions": mix,
                    "reloads": None if mix is None else mix["LDL"],  # of spilled registers
                    "wgmma": "wgmma.mma_async" in ptx,
                    "tcgen05": "tcgen05.mma" in ptx,
                    "block_scaled_mma": "tcgen05.mma" in ptx and ".block_scale" in ptx,
                    "bulk_tensor_copy": "cp.async.bulk.tensor" in ptx,
                    "ptx": ptx,
                }
            )
        return kernel

    triton.JITFunction.run = compile_only
    for num_tokens in token_counts:
        found.clear()
        run(*arguments_of(run, geometry, num_tokens))
        for kernel in found:
            yield {"num_tokens": num_tokens} | kernel


def main(leave_out=("ptx",)):
    """Print what `compile_all` yields for the program's arguments, a constant that is a dtype by
    its name.
    """
    sources, entry_point, geometry, architecture, *token_counts = sys.argv[1:]
    architecture, _, gpu = architecture.partition(":")
    path, function = entry_point.split("::")
    root = Path(sources)
    sys.path.insert(0, str(root.parent))
    module = importlib.import_module(f"{root.name}.{path.removesuffix('.py').replace('/', '.')}")
    for kernel in compile_all(
        getattr(module, function), geometry, architecture, map(int, token_counts), gpu
    ):
        print(
            json.dumps({k: v for k, v in kernel.items() if k not in leave_out}, default=str),
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Compile every kernel that a Triton solution launches, for an architecture that is not here.

The solution's own host code runs on tensors without storage, under a Triton driver that claims the
wanted architecture and launches nothing. What is compiled is therefore what a user's machine would
compile: tiles, warps, stages and specialisation of the arguments are the solution's, not a copy.

`compiled` runs this file in a process without the interpreter, which changes what `triton.jit`
makes:
    TRITON_INTERPRET=0 python tests/support/solutions/ahead_of_time.py SOURCES ENTRY_POINT
    LAYER_KEY ARCHITECTURE[:GPU] TOKENS...
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
from packed_sources import packed_texts, write_texts
from triton.backends.compiler import GPUTarget

COUNTED = re.compile(
    r"\b(?:UTC\w?MMA|[HIOQ]G?MMA|LDTM|STTM|UTMALDG|LDGSTS|LDSM|LDL|STL)\b"
)
USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+).* LOCAL:(\d+)")
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
LARGE_SHARED_MEMORY = 227 * 1024
# of a CTA
SHARED_MEMORY = dict.fromkeys(("sm_90", "sm_100", "sm_103"), LARGE_SHARED_MEMORY)
SHARED_MEMORY["sm_120"] = 99 * 1024


def compiled(name, layer_key, architecture, token_counts, folder, entry_point=None):
    """Return what `compile_all` yields for a solution and "sm_90" or "sm_90:NVIDIA H200"; its
    sources are put into folder.

    entry_point: FILE::FUNCTION, if it is not the definition's.
    """
    write_texts(folder / name, packed_texts(name, layer_key))
    entry_point = entry_point or pack(name)[layer_key].spec.entry_point
    command = [
        sys.executable,
        __file__,
        folder / name,
        entry_point,
        layer_key,
        architecture,
    ]
    command += token_counts

    # What is compiled does not depend on the GPU that is here.
    environment = os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        list(map(str, command)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def arguments_of(run, layer_key, num_tokens):
    """Return what `run` takes of the layer at full width, without storage; tokens in bf16 where it
    takes no scales of them.
    """
    arguments = layer_inputs.arguments(layer_key, num_tokens, "meta", offset=96)
    parameters = inspect.signature(run).parameters
    if "hidden_states" in parameters and "hidden_states_scale" not in parameters:
        arguments.pop("hidden_states_scale", None)
        arguments["hidden_states"] = arguments["hidden_states"].to(torch.bfloat16)
    return arguments.values()


def cuobjdump(option, file):
    """Return what cuobjdump prints of a library or a cubin; nothing where it is too old."""
    return subprocess.run(
        [CUOBJDUMP, option, file], capture_output=True, text=True
    ).stdout


def disassembled(cubin, option):
    """Return what cuobjdump prints of a kernel's bytes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return cuobjdump(option, file.name)


def resources(text):
    """Return name -> (registers, bytes of stack, bytes of local memory) of each kernel in the
    output of `cuobjdump -res-usage`.
    """
    usage = {}
    for name, *numbers in USAGE.findall(text):
        usage[name] = tuple(map(int, numbers))
    return usage


def instructions(cubin):
    """Return opcode -> count, of tensor cores, copies and local memory; None if this disassembler
    is too old.
    """
    listing = disassembled(cubin, "-sass")
    return Counter(COUNTED.findall(listing)) if "EXIT" in listing else None


def compile_all(run, layer_key, architecture, token_counts, gpu):
    """Compile what `run` launches for these token counts on a GPU of this name; yield a dict a
    distinct kernel.
    """
    claim_gpu(architecture, gpu)
    seen = set()
    descriptions = []
    jit_run = triton.JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = jit_run(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            descriptions.append(described(self, kernel, kwargs))
        return kernel

    triton.JITFunction.run = compile_only
    for num_tokens in token_counts:
        descriptions.clear()
        run(*arguments_of(run, layer_key, num_tokens))
        for description in descriptions:
            yield {"num_tokens": num_tokens} | description


def claim_gpu(architecture, gpu):
    """Make Triton and torch see a GPU of this architecture and name: as much of a driver as
    compiling needs.
    """
    major, minor = divmod(int(architecture.removeprefix("sm_")), 10)
    target = GPUTarget("cuda", 10 * major + minor, 32)
    driver = SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
    )
    properties = SimpleNamespace(
        major=major,
        minor=minor,
        name=gpu,
        multi_processor_count=MULTIPROCESSORS[architecture],
    )
    triton.runtime.driver.set_active(driver)
    torch.cuda.get_device_properties = lambda device: properties


def described(function, kernel, keywords):
    """Return what tests ask of a compiled kernel."""
    cubin = kernel.asm["cubin"]
    ptx = kernel.asm["ptx"]
    ((registers, stack, _),) = resources(disassembled(cubin, "-res-usage")).values()
    counts = instructions(cubin)
    constants = {}
    for name, value in keywords.items():
        if name in function.arg_names and name.isupper():
            constants[name] = value

    return {
        "kernel": function.__name__,
        "constants": constants,
        "num_warps": kernel.metadata.num_warps,
        "num_stages": kernel.metadata.num_stages,
        "shared": kernel.metadata.shared,
        "registers": registers,
        "stack": stack,
        "instructions": counts,
        "reloads": None if counts is None else counts["LDL"],  # of spilled registers
        "wgmma": "wgmma.mma_async" in ptx,
        "tcgen05": "tcgen05.mma" in ptx,
        "block_scaled_mma": "tcgen05.mma" in ptx and ".block_scale" in ptx,
        "bulk_tensor_copy": "cp.async.bulk.tensor" in ptx,
    }


def main():
    """Print what `compile_all` yields for the program's arguments, dtypes by their names."""
    sources, entry_point, layer_key, machine, *token_counts = sys.argv[1:]
    architecture, _, gpu = machine.partition(":")
    path, function = entry_point.split("::")
    root = Path(sources)
    sys.path.insert(0, str(root.parent))
    dotted = path.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(f"{root.name}.{dotted}")

    run = getattr(module, function)
    for kernel in compile_all(
        run, layer_key, architecture, map(int, token_counts), gpu
    ):
        print(json.dumps(kernel, default=str), flush=True)


if __name__ == "__main__":
    main()

"""Kernels of packed solutions: SASS of CUDA files, PTX of Triton's, without names of symbols, paths and comments."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import triton
import tvm_ffi.libinfo

CUOBJDUMP = shutil.which("cuobjdump") or Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TOKENS = ("1", "7", "80", "300", "901", "2000", "14107")  # multiples of 16 and others, and every choice of kernels
SASS = re.compile(r"/\*[0-9a-f]{4,}\*/ +(\S.*?) +/\* (0x\w{16}) \*/\n +/\* (0x\w{16}) \*/")  # text and 128 bits
MIX = re.compile(r"\b(?:\w+MMA|UTMALDG|LDGSTS)\b")
# The first compiles FlashInfer's kernels when it is imported, on a GPU alone.
NOT_HERE = {"flashinfer_cutlass"} | ({"sglang_triton"} if not find_spec("sglang") else set())
PACK = """
import json, sys
from harness.packing import pack
solutions, left_out = pack.pack_all(sys.argv[1:])
print(*left_out, file=sys.stderr)
for name, packed in solutions.items():
    for definition, found in packed.items():
        files = {source.path: source.content for source in found.sources}
        entries = [found.spec.entry_point, found.spec.entry_point + "_bf16"]
        entries = [entry for entry in entries if f"def {entry.split('::')[1]}(" in "".join(files.values())]
        print(json.dumps([name, definition, entries, found.spec.target_hardware, files]))
"""


class Kernel(NamedTuple):
    name: str
    target: str  # an architecture, or PTX
    code: tuple[str, ...]
    registers: int = 0
    shared: int = 0  # bytes; without what a CUDA file's host code asks for
    local: int = 0  # bytes, of spilled registers for instance
    mix: str = ""  # its instructions of tensor cores and asynchronous copies, if they could be decoded


class Bundle(NamedTuple):
    """A packed solution. files: path -> text."""

    name: str
    definition: str
    entry_points: list[str]
    hardware: list[str]
    files: dict[str, str]

    def write(self, folder: str) -> Path:
        """The bundle's own folder in this one."""
        for path, text in self.files.items():
            file = Path(folder, self.name, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return Path(folder, self.name)

    def closure(self, path: str) -> list[tuple[str, str]]:
        """(name, text) of a CUDA file and of all that it includes, by name."""
        by_name, todo, found = {PurePosixPath(each).name: each for each in self.files}, [path], {}
        while todo:
            name = PurePosixPath(todo.pop()).name
            if name in by_name and name not in found:
                found[name] = without_comments(by_name[name], self.files[by_name[name]])
                todo += re.findall(r'#\s*include\s*"(.+?)"', found[name])
        return sorted(found.items())


def packed(checkout: Path, names: list[str]) -> dict[tuple[str, str], Bundle]:
    """(solution, definition) -> Bundle of what has kernels, by the checkout's own packing. Raises RuntimeError."""
    path = os.pathsep.join(map(str, (checkout.resolve() / "scripts", checkout.resolve())))
    lines = output([sys.executable, "-c", PACK, *names], PYTHONPATH=path).splitlines()
    found = [Bundle(*fields) for fields in map(json.loads, lines) if fields[0] not in NOT_HERE]
    compiles = [each for each in found if re.search(r"triton\.jit|__global__", "".join(each.files.values()))]
    return {(bundle.name, bundle.definition): bundle for bundle in compiles}


def machines(bundle: Bundle) -> list[str]:
    """sm_90, with tiles by rule and with an H200's; of CUDA sources the solution's other architectures, too."""
    cuda = any(path.endswith(".cu") for path in bundle.files)
    return ["sm_90", "sm_90:NVIDIA H200", *(sm for sm in bundle.hardware if cuda and sm not in ("cpu", "sm_90"))]


def kernels(bundle: Bundle | None, other: Bundle | None, machine: str) -> list[Kernel]:
    """All that a solution compiles on a machine, to be compared with the other checkout's; of None none.

    Raises RuntimeError where something does not compile.
    """
    found = {}
    for entry_point in bundle.entry_points if bundle else ():
        for each in launches(bundle, entry_point, machine):
            found |= dict.fromkeys([triton_kernel(**each)] if "ptx" in each else cuda_kernels(bundle, other, **each))
    return list(found)


def launches(bundle: Bundle, entry_point: str, machine: str) -> list[dict]:
    """What launches.py prints for a function of the solution."""
    what = [entry_point, bundle.definition, machine, *TOKENS]

    def launched() -> list[dict]:
        with tempfile.TemporaryDirectory() as folder:
            program = [sys.executable, Path(__file__).with_name("launches.py")]
            return [json.loads(line) for line in output([*program, bundle.write(folder), *what]).splitlines()]

    python = [(path, text) for path, text in bundle.files.items() if ".cu" not in path]
    units = [path for path in bundle.files if path.endswith(".cu")]
    return kept(launched, python, units, what)


def triton_kernel(kernel: str, ptx: str, registers=0, shared=0, stack=0, instructions=None, **_) -> Kernel:
    """Without its name in the PTX, and without what tells of lines in the source."""
    lines = ptx.partition("\t.section\t.debug")[0].replace(kernel, "KERNEL").splitlines()
    lines = [line.partition("//")[0].strip() for line in lines]
    code = tuple(x for x in lines if x and not x.startswith((".loc", ".file", "$L__tmp")))
    mix = " ".join(sorted(filter(MIX.match, instructions or ())))
    return Kernel(kernel, "PTX", code, registers, shared, stack, mix)


def cuda_kernels(bundle: Bundle, other: Bundle | None, file: str, architecture: str, flags: list, folders: list):
    """Those of a CUDA file. One that includes CUTLASS takes minutes: not compiled where both have the same text."""
    texts, sm = bundle.closure(file), architecture.replace(".", "")
    if re.search(r'#include ["<]cutlass/', str(texts)) and other and other.closure(file) == texts:
        yield Kernel(PurePosixPath(file).name, f"sm_{sm}", ("equal text",))
        return

    def compile_unit() -> list:
        with tempfile.TemporaryDirectory() as folder:
            root, cubin, ours = bundle.write(folder), f"{folder}/cubin", tvm_ffi.libinfo
            search = {*(str((root / each).parent) for each in bundle.files), *folders}
            search |= {ours.find_include_path(), ours.find_dlpack_include_path()}
            command = ["nvcc", *"-Xcompiler -fPIC -std=c++17 -O2 -cubin -o".split(), cubin, f"-arch=sm_{sm}", *flags]
            output([*command, *(f"-I{each}" for each in sorted(search)), root / file])
            used = dict(re.findall(r"Function (\S+):\s+(REG.*)", output([CUOBJDUMP, "-res-usage", cubin])))
            parts = output([CUOBJDUMP, "-sass", cubin]).split("Function : ")[1:]
        found = [(part.split()[0], SASS.findall(part)) for part in parts]
        if not all(code for _, code in found):
            raise RuntimeError(f"{CUOBJDUMP} is too old for sm_{sm}: put a newer cuobjdump on the PATH")
        return [[output(["c++filt", name]), [used[name], *map(" ".join, code)]] for name, code in found]

    for name, (resources, *code) in kept(compile_unit, texts, architecture, flags):
        name, of = re.sub(r"^void |\([^()]*\)$", "", name.strip()), dict(re.findall(r"([A-Z]+):(\d+)", resources))
        registers, shared, *local = (int(of[kind]) for kind in ("REG", "SHARED", "STACK", "LOCAL"))
        mix = " ".join(sorted({*MIX.findall("\n".join(code))}))
        yield Kernel(name, f"sm_{sm}", (resources, *code), registers, shared, sum(local), mix)


def output(command: list, text: str | None = None, **variables: str) -> str:
    """What a command prints. Raises RuntimeError with the first line that tells of an error, or the last."""
    env = os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""} | variables
    done = subprocess.run(command, input=text, env=env, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["failed"]
        raise RuntimeError(f"{Path(command[0]).name}: {next((line for line in lines if 'error:' in line), lines[-1])}")
    return done.stdout


def kept(make: Callable, *decides: object, done={}):  # noqa: B006  kept over calls
    """What `make` gives, or gave before where the same decided it."""
    if (key := repr((make.__name__, decides))) not in done:
        done[key] = make()
    return done[key]


@cache
def without_comments(path: str, text: str) -> str:
    cpp = path.endswith((".cu", ".cuh", ".cpp"))
    return output(["g++", "-fpreprocessed", "-dD", "-E", "-P", "-x", "c++", "-"], text) if cpp else text

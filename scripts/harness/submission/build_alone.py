"""Build a submission in a process that knows nothing of this repository. Imports nothing of it either.

    python -I build_alone.py FOLDER REPOSITORY HARDWARE

FOLDER holds bundle/ and definition.json. The last line printed is JSON: a list of lines, what was done and what could
not be checked, or a string, why it does not build. With a CUDA device the entry point is called once; without one, CUDA
sources are still compiled and linked, by the bundle's build.py::load_kernels, for HARDWARE unless it names another.
"""

import contextlib
import importlib
import json
import os
import shutil
import sys
import tomllib
from pathlib import Path

import torch
from flashinfer_bench import BuildSpec, Definition, Solution, Workload
from flashinfer_bench.agents import pack_solution_from_files
from flashinfer_bench.bench.utils import gen_inputs
from flashinfer_bench.compile import BuilderRegistry

TOKENS = 7


class Refused(Exception):
    """The bundle is not fit to hand in; the message is one line."""


def repacked(bundle):
    """The Solution that the kit's own packing makes of config.toml and solution/<language>/."""
    config = tomllib.loads((bundle / "config.toml").read_text(encoding="utf-8"))
    spec = BuildSpec(target_hardware=["cuda"], **config["build"])
    return pack_solution_from_files(str(bundle / "solution" / spec.language.value), spec, **config["solution"])


def call_once(definition, runnable):
    """One call on random inputs; its output must be finite."""
    inputs = {name: {"type": "random"} for name in definition.inputs}
    inputs["local_expert_offset"] = {"type": "scalar", "value": 0}
    inputs["routed_scaling_factor"] = {"type": "scalar", "value": 2.5}
    workload = Workload(axes={"seq_len": TOKENS}, inputs=inputs, uuid="once")
    output = runnable.call_value_returning(*gen_inputs(definition, workload, "cuda:0"))
    torch.cuda.synchronize()
    if not torch.isfinite(output.float()).all():
        raise Refused(f"a call with {TOKENS} tokens gave an output that is not finite")


def compile_without_device(package):
    """Compile and link through the bundle's build.py, without opening the library, which needs a CUDA driver."""
    import tvm_ffi.cpp

    if shutil.which("nvcc") is None:
        raise Refused("its CUDA sources were not compiled: there is neither a CUDA device nor nvcc on the PATH")
    try:
        load = importlib.import_module(f"{package}.build").load_kernels
    except (ImportError, AttributeError) as error:
        needs = "without a CUDA device that takes a build.py with load_kernels()"
        raise Refused(f"its CUDA sources were not compiled: {needs}") from error
    tvm_ffi.cpp.load, tvm_ffi.cpp.load_inline = tvm_ffi.cpp.build, tvm_ffi.cpp.build_inline
    load()


def check_modules(repository):
    """Raise Refused where a module was loaded from this repository's sources."""
    own = [repository / folder for folder in ("definitions", "scripts", "solutions", "tests")]
    for name, module in sorted(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or __file__)
        if file != Path(__file__) and any(file.is_relative_to(folder) for folder in own):
            raise Refused(f"it loads {name} from this repository")


def build(folder, hardware):
    """Pack, build and, with a device, call the bundle; lines of what was done and what could not be checked."""
    definition = Definition.model_validate_json((folder / "definition.json").read_text(encoding="utf-8"))
    solution = Solution.model_validate_json((folder / "bundle" / "solution.json").read_text(encoding="utf-8"))
    if repacked(folder / "bundle").model_dump() != solution.model_dump():
        raise Refused("solution.json is not what config.toml and solution/ pack to")
    if not (has_device := torch.cuda.is_available()):
        number = hardware.removeprefix("sm_")
        os.environ["TVM_FFI_CUDA_ARCH_LIST"] = f"{number[:-1]}.{number[-1]}a"
    runnable = BuilderRegistry.get_instance().build(definition, solution)
    done = [
        "packed again from config.toml and solution/: the same solution.json",
        f"built by FIB's {runnable.metadata.build_type} builder",
    ]
    if has_device:
        call_once(definition, runnable)
        return [*done, f"called once with {TOKENS} tokens on {torch.cuda.get_device_name()}"]
    compiles = any(source.path.endswith(".cu") or "load_inline" in source.content for source in solution.sources)
    if compiles and solution.spec.language.value in {"python", "triton"}:  # else the builder has compiled them
        compile_without_device(runnable._callable.__module__.rpartition(".")[0])
        done.append("CUDA sources compiled and linked by nvcc")
    return [*done, "not checked: that it runs, for want of a CUDA device"]


def fault(caught):
    """The line of an exception, a compiler's whole output for instance, that says what is wrong."""
    lines = [line.strip() for line in str(caught).splitlines() if line.strip()] or ["no message"]
    marks = ("error:", "cannot find", "undefined reference")
    line = next((line for line in lines if any(mark in line for mark in marks)), lines[0])
    return line if isinstance(caught, Refused) else f"{type(caught).__name__}: {line}"


def main():
    folder, repository = map(Path, sys.argv[1:3])
    try:
        with contextlib.redirect_stderr(sys.stdout):
            report = build(folder, sys.argv[3])
            check_modules(repository)
    except Exception as caught:  # whatever a submission raises is a reason to refuse it
        report = fault(caught)
    print(f"\n{json.dumps(report)}")  # whatever the submission printed may end within a line


if __name__ == "__main__":
    main()

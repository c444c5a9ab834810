"""Build a submission in a process that knows nothing of this repository. Imports nothing of it either.

    python -I build_alone.py BUNDLE DEFINITION REPOSITORY HARDWARE

prints what was done, a line each, then one JSON object: {"error": null or a line, "unchecked": [lines]}.
BUNDLE is packed by FIB as the starter kit does, compared with its solution.json and built by FIB's builder. With a
CUDA device the entry point is called once; without one, CUDA sources are still compiled and linked, by the bundle's own
build.py::load_kernels with tvm_ffi's `load` cut short before it opens the library, for HARDWARE (sm_100, say) unless
it names an architecture itself.
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
from flashinfer_bench.compile import BuilderRegistry

TOKENS = 7


class Refused(Exception):
    """The bundle is not fit to hand in; the message is one line."""


def repacked(bundle):
    """The Solution that the kit's own packing makes of config.toml and solution/<language>/."""
    config = tomllib.loads((bundle / "config.toml").read_text())
    build = config["build"]
    spec = BuildSpec(
        language=build["language"],
        target_hardware=["cuda"],
        entry_point=build["entry_point"],
        destination_passing_style=build.get("destination_passing_style", True),
    )
    return pack_solution_from_files(str(bundle / "solution" / build["language"]), spec, **config["solution"])


def call_once(definition, runnable):
    """One call at TOKENS tokens on random inputs; its output must be finite."""
    from flashinfer_bench.bench.utils import gen_inputs

    scalars = {"local_expert_offset": 0, "routed_scaling_factor": 2.5}
    inputs = {name: {"type": "random"} for name in definition.inputs}
    inputs |= {name: {"type": "scalar", "value": value} for name, value in scalars.items()}
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
        raise Refused(
            "its CUDA sources were not compiled: without a CUDA device that takes a build.py with load_kernels()"
        ) from error
    tvm_ffi.cpp.load, tvm_ffi.cpp.load_inline = tvm_ffi.cpp.build, tvm_ffi.cpp.build_inline
    load()


def check(bundle, definition_file, repository, hardware, unchecked):
    definition = Definition.model_validate_json(definition_file.read_text())
    solution = Solution.model_validate_json((bundle / "solution.json").read_text())
    if repacked(bundle).model_dump() != solution.model_dump():
        raise Refused("solution.json is not what config.toml and solution/ pack to")
    print("packed again from config.toml and solution/: the same solution.json")
    has_device = torch.cuda.is_available()
    if not has_device:
        number = hardware.removeprefix("sm_")
        os.environ["TVM_FFI_CUDA_ARCH_LIST"] = f"{number[:-1]}.{number[-1]}a"
    runnable = BuilderRegistry.get_instance().build(definition, solution)
    print(f"built by FIB's {runnable.metadata.build_type} builder")
    compiles = any(source.path.endswith(".cu") or "load_inline" in source.content for source in solution.sources)
    if has_device:
        call_once(definition, runnable)
        print(f"called once with {TOKENS} tokens on {torch.cuda.get_device_name()}")
    else:
        if compiles and solution.spec.language.value in {"python", "triton"}:  # else the builder has compiled them
            compile_without_device(runnable._callable.__module__.rpartition(".")[0])
            print("CUDA sources compiled and linked by nvcc")
        unchecked.append("that it runs, for want of a CUDA device")
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and file != __file__ and any(Path(file).is_relative_to(folder) for folder in repository):
            raise Refused(f"it loads {name} from this repository")


def main():
    bundle, definition_file, repository = map(Path, sys.argv[1:4])
    own = [repository / folder for folder in ("definitions", "scripts", "solutions", "tests")]
    error, unchecked = None, []
    try:
        with contextlib.redirect_stderr(sys.stdout):
            check(bundle, definition_file, own, sys.argv[4], unchecked)
    except Exception as caught:  # whatever a submission raises is a reason to refuse it
        lines = [line.strip() for line in str(caught).splitlines() if line.strip()]
        telling = ("error:", "cannot find", "undefined reference")
        wrong = [line for line in lines if any(word in line for word in telling)] or lines or ["no message"]
        error = wrong[0] if isinstance(caught, Refused) else f"{type(caught).__name__}: {wrong[0]}"
    print()  # whatever the submission printed may end within a line
    print(json.dumps({"error": error, "unchecked": unchecked}))


if __name__ == "__main__":
    main()

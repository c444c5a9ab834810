"""Build a submission in a process that knows nothing of this repository, and so imports nothing of
it. clean_build.py runs it:

    python -I build_alone.py FOLDER HARDWARE

FOLDER holds solution.json and definition.json; done.json is written there, which says what was done
and what was not checked. With a CUDA device the entry point is called once. Without one, CUDA
sources are still compiled and linked, by load_kernels in the solution's build.py, for HARDWARE
unless that file names another. Whatever is raised is a reason to refuse the submission.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import torch
import tvm_ffi.cpp
from flashinfer_bench import Definition, Solution, Workload
from flashinfer_bench.bench.utils import gen_inputs
from flashinfer_bench.compile import BuilderRegistry

TOKENS = 7
SCALARS = {"local_expert_offset": 0, "routed_scaling_factor": 2.5}
# an editable install must not help
NOT_IMPORTED = ("moebench", "definitions", "solutions")


def main(folder: Path, hardware: str) -> None:
    for name in NOT_IMPORTED:
        sys.modules[name] = None
    definition_json = (folder / "definition.json").read_bytes()
    definition = Definition.model_validate_json(definition_json)
    solution_json = (folder / "solution.json").read_bytes()
    solution = Solution.model_validate_json(solution_json)
    has_device = torch.cuda.is_available()
    if not has_device:
        os.environ["TVM_FFI_CUDA_ARCH_LIST"] = architecture(hardware)

    runnable = BuilderRegistry.get_instance().build(definition, solution)
    done = [f"built by FIB's {runnable.metadata.build_type} builder"]
    if has_device:
        done.append(call_once(definition, runnable))
    else:
        if has_cuda_to_compile(solution):
            done.append(compile_cuda(runnable))
        done.append("not checked: that it runs, for want of a CUDA device")

    # to a file, as a submission may print, even at exit
    (folder / "done.json").write_text(json.dumps(done))


def architecture(hardware: str) -> str:
    """Return a GPU's architecture as TVM_FFI_CUDA_ARCH_LIST has it: 10.0a for sm_100. Before sm_90
    there is no "a".
    """
    number = int(hardware.removeprefix("sm_"))
    major, minor = divmod(number, 10)
    return f"{major}.{minor}a" if number >= 90 else f"{major}.{minor}"


def has_cuda_to_compile(solution: Solution) -> bool:
    """Return whether there are CUDA sources that FIB's builder has not compiled: that for Python
    compiles none.
    """
    has_cuda = any(source.path.endswith(".cu") for source in solution.sources)
    return has_cuda and solution.spec.language.value != "cuda"


def compile_cuda(runnable) -> str:
    """Compile and link a solution's CUDA sources; return a line that says so."""
    # without opening the library, which needs a driver
    tvm_ffi.cpp.load = tvm_ffi.cpp.build
    tvm_ffi.cpp.load_inline = tvm_ffi.cpp.build_inline

    package, _, _ = runnable._callable.__module__.rpartition(".")
    build = importlib.import_module(f"{package}.build")
    build.load_kernels()
    return "CUDA sources compiled and linked by nvcc"


def call_once(definition: Definition, runnable) -> str:
    """Call a solution on random inputs; return a line that says so.

    Raises ValueError for an output that is not finite.
    """
    specs = {name: {"type": "random"} for name in definition.inputs}
    for name, value in SCALARS.items():
        specs[name] = {"type": "scalar", "value": value}
    workload = Workload(axes={"seq_len": TOKENS}, inputs=specs, uuid="once")

    inputs = gen_inputs(definition, workload, "cuda:0")
    output = runnable.call_value_returning(*inputs)
    if not torch.isfinite(output.float()).all():
        raise ValueError(
            f"a call with {TOKENS} tokens gave an output that is not finite"
        )
    return f"called once with {TOKENS} tokens on {torch.cuda.get_device_name()}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

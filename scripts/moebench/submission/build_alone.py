"""Build a submission in a process that knows nothing of this repository. Imports nothing of it
either.

    python -I build_alone.py FOLDER HARDWARE

FOLDER holds solution.json and definition.json. done.json is written there: what was done and what
was not checked. With a CUDA device the entry point is called once. Without one, CUDA sources are
still compiled and linked, by their build.py::load_kernels, for HARDWARE unless it names another.
Whatever is raised is a reason to refuse the submission.
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

TOKENS, SCALARS = 7, {"local_expert_offset": 0, "routed_scaling_factor": 2.5}


def call_once(definition, runnable):
    """One call on random inputs; its output must be finite."""
    inputs = {name: {"type": "random"} for name in definition.inputs}
    inputs |= {name: {"type": "scalar", "value": value} for name, value in SCALARS.items()}
    workload = Workload(axes={"seq_len": TOKENS}, inputs=inputs, uuid="once")
    output = runnable.call_value_returning(*gen_inputs(definition, workload, "cuda:0"))
    if not torch.isfinite(output.float()).all():
        raise ValueError(f"a call with {TOKENS} tokens gave an output that is not finite")
    return f"called once with {TOKENS} tokens on {torch.cuda.get_device_name()}"


def main(folder, hardware):
    sys.modules |= dict.fromkeys(
        ("moebench", "definitions", "solutions")
    )  # an editable installation must not help
    definition = Definition.model_validate_json((folder / "definition.json").read_bytes())
    solution = Solution.model_validate_json((folder / "solution.json").read_bytes())
    if not (has_device := torch.cuda.is_available()):
        feature_set = (
            "a" if int(hardware[3:]) >= 90 else ""
        )  # nvcc knows none of an older architecture
        os.environ["TVM_FFI_CUDA_ARCH_LIST"] = f"{hardware[3:-1]}.{hardware[-1]}{feature_set}"
    runnable = BuilderRegistry.get_instance().build(definition, solution)
    done = [f"built by FIB's {runnable.metadata.build_type} builder"]
    if has_device:
        done.append(call_once(definition, runnable))
    elif (
        any(source.path.endswith(".cu") for source in solution.sources)
        and solution.spec.language.value != "cuda"
    ):
        # without opening the library, which needs a driver
        tvm_ffi.cpp.load, tvm_ffi.cpp.load_inline = tvm_ffi.cpp.build, tvm_ffi.cpp.build_inline
        importlib.import_module(
            f"{runnable._callable.__module__.rpartition('.')[0]}.build"
        ).load_kernels()
        done.append("CUDA sources compiled and linked by nvcc")
    done += [] if has_device else ["not checked: that it runs, for want of a CUDA device"]
    (folder / "done.json").write_text(
        json.dumps(done)
    )  # not printed: a submission may print too, even at exit


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

"""build: compile the CUDA source for sm_90a on first use, once for each content, and load it."""

import os
import shutil
import sys
from functools import lru_cache
from pathlib import Path

import tvm_ffi.cpp

ARCHITECTURE = "9.0a"  # wgmma and setmaxnreg are not in plain sm_90


@lru_cache
def load_kernels():
    """The compiled module, with `run_layer`.

    tvm_ffi names its build folder after the sources and flags and holds a lock while it builds, so several
    processes build once and an unchanged source is never built again.

    Raises:
        RuntimeError: there is no nvcc, or it fails (its output is in the message).
    """
    cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    if shutil.which("nvcc") is None and not (cuda / "bin/nvcc").exists():
        raise RuntimeError("hopper_fused is compiled on first use and needs nvcc (CUDA 12.3 or later) on the PATH")
    folder = Path(__file__).parent
    before = os.environ.get("TVM_FFI_CUDA_ARCH_LIST")
    os.environ["TVM_FFI_CUDA_ARCH_LIST"] = ARCHITECTURE
    print("hopper_fused: loading the CUDA kernels (compiled on first use, about 30 s)", file=sys.stderr, flush=True)
    try:
        return tvm_ffi.cpp.load(
            "hopper_fused",
            cuda_files=[str(file) for file in sorted(folder.rglob("*.cu"))],
            extra_ldflags=(f"-L{cuda}/lib64", f"-Wl,-rpath,{cuda}/lib64"),  # where nvcc on the PATH only forwards
            extra_include_paths=sorted({str(file.parent) for file in folder.rglob("*.cuh")}),
        )
    finally:
        if before is None:
            del os.environ["TVM_FFI_CUDA_ARCH_LIST"]
        else:
            os.environ["TVM_FFI_CUDA_ARCH_LIST"] = before

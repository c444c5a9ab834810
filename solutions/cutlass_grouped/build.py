"""build: compile the CUDA sources for sm_90a on first use, once for each content, and load them."""

import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import tvm_ffi.cpp

ARCHITECTURE = "9.0a"  # wgmma and setmaxnreg are not in plain sm_90
# Without NDEBUG an assertion in the products' main loop counts as a function call, and ptxas makes them wait there.
FLAGS = ("-O3", "-DNDEBUG", "-DCUTLASS_ENABLE_GDC_FOR_SM90=1", "--expt-relaxed-constexpr")
NOT_HERE = "sm100_"  # of sources for another architecture


def cutlass_folders():
    """Include folders of the CUTLASS that flashinfer-python ships, found without importing it.

    Raises:
        RuntimeError: flashinfer-python is not installed, or came without them.
    """
    spec = importlib.util.find_spec("flashinfer")
    if spec is None:
        raise RuntimeError("cutlass_grouped needs the CUTLASS headers in flashinfer-python, which is not installed")
    root = Path(spec.submodule_search_locations[0]) / "data" / "cutlass"
    folders = [root / "include", root / "tools" / "util" / "include"]
    if not (folders[0] / "cutlass" / "cutlass.h").is_file():
        raise RuntimeError(f"cutlass_grouped needs the CUTLASS headers of flashinfer-python; there are none in {root}")
    return folders


def _kept_sources(folder):
    """A copy of the CUDA sources in the cache, in a folder named after what they say, so that ninja knows them again.

    FIB unpacks a solution to a new place now and then, and that alone must not compile it again.
    """
    texts = {path.name: path.read_text() for path in sorted(folder.glob("*.cu*")) if not path.name.startswith(NOT_HERE)}
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("TVM_FFI_CACHE_DIR", "~/.cache/tvm-ffi")).expanduser()
    kept = cache / f"cutlass_grouped_sources_{digest}"
    if not kept.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as new:
            for name, text in texts.items():
                (Path(new) / "sources" / name).parent.mkdir(exist_ok=True)
                (Path(new) / "sources" / name).write_text(text)
            try:
                (Path(new) / "sources").rename(kept)
            except OSError:  # another process was faster
                if not kept.is_dir():
                    raise
    return kept


@lru_cache
def load_kernels():
    """The compiled module, with `run_layer` and `tile_number`.

    tvm_ffi holds a lock while it builds and leaves what is up to date alone, so several processes build once and an
    unchanged source is never built again.

    Raises:
        RuntimeError: there is no nvcc or no CUTLASS, or nvcc fails (its output is in the message).
    """
    nvcc = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/nvcc"
    if shutil.which("nvcc") is None and not nvcc.exists():
        raise RuntimeError("cutlass_grouped is compiled on first use and needs nvcc (CUDA 12.8 or later) on the PATH")
    includes = cutlass_folders()
    sources = _kept_sources(Path(__file__).parent)
    files = sorted(sources.glob("*.cu"))
    print(
        f"cutlass_grouped: loading {len(files)} CUDA files (compiled on first use, a minute or two on 16 cores)",
        file=sys.stderr,
        flush=True,
    )
    before = os.environ.get("TVM_FFI_CUDA_ARCH_LIST")
    os.environ["TVM_FFI_CUDA_ARCH_LIST"] = ARCHITECTURE
    try:
        return tvm_ffi.cpp.load(
            "cutlass_grouped",
            cuda_files=[str(file) for file in files],
            extra_cuda_cflags=FLAGS,
            extra_include_paths=[str(folder) for folder in (sources, *includes)],
        )
    finally:
        if before is None:
            del os.environ["TVM_FFI_CUDA_ARCH_LIST"]
        else:
            os.environ["TVM_FFI_CUDA_ARCH_LIST"] = before

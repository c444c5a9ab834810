"""build: compile the CUDA sources on first use, once for each content, and load them."""

import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import tvm_ffi
import tvm_ffi.cpp


class Target(NamedTuple):
    """An architecture: nvcc's name of it, what its own source files begin with, and its flags."""

    architecture: str
    prefix: str
    flags: tuple[str, ...]


# Without NDEBUG an assertion in the products' main loop counts as a function call, and ptxas makes them wait there.
_FLAGS = ("-O3", "-DNDEBUG", "--expt-relaxed-constexpr")
TARGETS = {
    "sm_90": Target("9.0a", "sm90_", (*_FLAGS, "-DCUTLASS_ENABLE_GDC_FOR_SM90=1")),
    "sm_100": Target("10.0a", "sm100_", (*_FLAGS, "-DCUTLASS_ENABLE_GDC_FOR_SM100=1")),
}


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


def _kept_sources(target):
    """A copy of the CUDA sources in the cache, in a folder named after what they say, so that ninja knows them again.

    FIB unpacks a solution to a new place now and then, and that alone must not compile it again.
    """
    others = tuple(other.prefix for other in TARGETS.values() if other != target)
    files = [path for path in sorted(Path(__file__).parent.glob("*.cu*")) if not path.name.startswith(others)]
    texts = {path.name: path.read_text() for path in files}
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("TVM_FFI_CACHE_DIR", "~/.cache/tvm-ffi")).expanduser()
    kept = cache / f"cutlass_grouped_sources_{digest}"
    if not kept.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as new:
            sources = Path(new) / "sources"
            sources.mkdir()
            for name, text in texts.items():
                (sources / name).write_text(text)
            try:
                sources.rename(kept)
            except OSError:  # another process was faster
                if not kept.is_dir():
                    raise
    return kept


def build(hardware):
    """Path of the library for a key of TARGETS, compiled if it is not there yet, all files at once.

    tvm_ffi holds a lock while it builds and leaves what is up to date alone, so several processes build once and an
    unchanged source is never built again.

    Raises:
        RuntimeError: there is no nvcc or no CUTLASS, or nvcc fails (its output is in the message).
    """
    cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    if shutil.which("nvcc") is None and not (cuda / "bin/nvcc").exists():
        raise RuntimeError("cutlass_grouped is compiled on first use and needs nvcc on the PATH (made with CUDA 13.0)")
    target = TARGETS[hardware]
    includes = cutlass_folders()
    sources = _kept_sources(target)
    files = sorted(sources.glob("*.cu"))
    print(
        f"cutlass_grouped: loading {len(files)} CUDA files (compiled on first use, each a minute of one core)",
        file=sys.stderr,
        flush=True,
    )
    before = os.environ.get("TVM_FFI_CUDA_ARCH_LIST")
    os.environ["TVM_FFI_CUDA_ARCH_LIST"] = target.architecture
    try:
        return tvm_ffi.cpp.build(
            "cutlass_grouped",
            cuda_files=[str(file) for file in files],
            extra_cuda_cflags=target.flags,
            extra_ldflags=(f"-L{cuda}/lib64", f"-Wl,-rpath,{cuda}/lib64"),  # where nvcc on the PATH only forwards
            extra_include_paths=[str(folder) for folder in (sources, *includes)],
        )
    finally:
        if before is None:
            del os.environ["TVM_FFI_CUDA_ARCH_LIST"]
        else:
            os.environ["TVM_FFI_CUDA_ARCH_LIST"] = before


@lru_cache
def load_kernels():
    """The module compiled for sm_90, with `run_layer` and `tile_number`. Raises RuntimeError as `build` does."""
    return tvm_ffi.load_module(build("sm_90"))

"""build: compile the CUDA sources, on first use, into two libraries: the GEMMs, and the layer.

No size of a definition enters the GEMMs, which take minutes to compile, so all definitions share
that library. main.py calls `load_kernels`.
"""

import importlib.util
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..common.host.build_library import build_library, load_library, read_sources


class Target(NamedTuple):
    """How both libraries are compiled for an architecture."""

    architecture: str  # nvcc's name
    prefix: str  # what the architecture's own files in gemms/ begin with
    flags: tuple[str, ...]


# Without NDEBUG an assertion in the GEMMs' main loop is a function call, before which ptxas makes
# every wgmma wait.
_FLAGS = ("-O3", "-DNDEBUG", "--expt-relaxed-constexpr")
TARGETS = {
    "sm_90": Target("9.0a", "sm90_", (*_FLAGS, "-DCUTLASS_ENABLE_GDC_FOR_SM90=1")),
    "sm_100": Target("10.0a", "sm100_", (*_FLAGS, "-DCUTLASS_ENABLE_GDC_FOR_SM100=1")),
}

# Files are told apart by their names alone, because a contest submission has a single folder.
# how the GEMMs' files begin, for any architecture
GEMMS = ("find_tile", "grouped_gemm")
SHARED = ("grouped_gemm.cuh", "pdl.cuh")  # files that both libraries include


def cutlass_folders():
    """Return the include folders of the CUTLASS that comes with flashinfer-python.

    The package is not imported.

    Raises:
        RuntimeError: flashinfer-python is not installed, or came without CUTLASS.
    """
    spec = importlib.util.find_spec("flashinfer")
    if spec is None:
        needs = "the CUTLASS headers in flashinfer-python, which is not installed"
        raise RuntimeError(f"cutlass_grouped needs {needs}")

    root = Path(spec.submodule_search_locations[0]) / "data" / "cutlass"
    folders = [root / "include", root / "tools" / "util" / "include"]
    if not (folders[0] / "cutlass" / "cutlass.h").is_file():
        needs = f"the CUTLASS headers of flashinfer-python; there are none in {root}"
        raise RuntimeError(f"cutlass_grouped needs {needs}")
    return folders


def sources(hardware):
    """Return name of a library -> path -> text of its sources. hardware: a key of TARGETS."""
    prefix = TARGETS[hardware].prefix
    prefixes = tuple(target.prefix for target in TARGETS.values())
    gemms = {}
    layer = {}
    for path, text in read_sources(Path(__file__).parent).items():
        name = PurePosixPath(path).name
        is_shared = name in SHARED
        if is_shared or name.startswith((*GEMMS, prefix)):
            gemms[path] = text
        if is_shared or not name.startswith((*GEMMS, *prefixes)):
            layer[path] = text
    return {"cutlass_grouped_gemms": gemms, "cutlass_grouped": layer}


def build(hardware):
    """Return the paths of both libraries, compiled unless they are there.

    hardware: a key of TARGETS.

    Raises:
        RuntimeError: there is no CUTLASS, or as `build_library` does.
    """
    target = TARGETS[hardware]
    folders = cutlass_folders()
    version = (folders[0] / "cutlass" / "version.h").read_text()
    libraries = []
    for name, texts in sources(hardware).items():
        library = build_library(
            name,
            texts,
            architecture=target.architecture,
            flags=target.flags,
            include_folders=folders,
            headers_version=version,
        )
        libraries.append(library)
    return libraries


@lru_cache
def load_kernels():
    """Return the modules for sm_90: one with `find_tile`, one with `run_layer` and `run_renorm`.

    Raises RuntimeError as `build` does.
    """
    return [load_library(library) for library in build("sm_90")]

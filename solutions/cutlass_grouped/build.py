"""build: the libraries of the CUDA sources, compiled for one architecture on first use."""

import importlib.util
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..common.host.build_library import build_library, load_library, read_sources


class Target(NamedTuple):
    """An architecture: nvcc's name of it, what its own files in gemms/ begin with, and its
    flags.
    """

    architecture: str
    prefix: str
    flags: tuple[str, ...]


# Without NDEBUG an assertion in the products' main loop counts as a function call, and ptxas makes
# them wait there.
_FLAGS = ("-O3", "-DNDEBUG", "--expt-relaxed-constexpr")
TARGETS = {
    "sm_90": Target("9.0a", "sm90_", (*_FLAGS, "-DCUTLASS_ENABLE_GDC_FOR_SM90=1")),
    "sm_100": Target("10.0a", "sm100_", (*_FLAGS, "-DCUTLASS_ENABLE_GDC_FOR_SM100=1")),
}

# What files of the GEMMs' library begin with, beside an architecture's own; and files that both
# libraries have. By name alone, as a submission has a single folder.
GEMMS, SHARED = ("find_tile", "grouped_gemm"), ("grouped_gemm.cuh", "pdl.cuh")


def cutlass_folders():
    """Include folders of the CUTLASS that flashinfer-python ships, found without importing it.

    Raises:
        RuntimeError: flashinfer-python is not installed, or came without them.
    """
    spec = importlib.util.find_spec("flashinfer")
    if spec is None:
        raise RuntimeError(
            "cutlass_grouped needs the CUTLASS headers in flashinfer-python, which is not installed"
        )
    root = Path(spec.submodule_search_locations[0]) / "data" / "cutlass"
    folders = [root / "include", root / "tools" / "util" / "include"]
    if not (folders[0] / "cutlass" / "cutlass.h").is_file():
        raise RuntimeError(
            f"cutlass_grouped needs the CUTLASS headers of flashinfer-python; there are none in {root}"
        )
    return folders


def sources(hardware):
    """Name -> path -> text of two libraries for a key of TARGETS: the GEMMs, and the layer that
    launches them.

    No size decides the GEMMs, which take minutes to compile: definitions share them.
    """
    texts = read_sources(Path(__file__).parent)
    names = {path: PurePosixPath(path).name for path in texts}
    of_any = (*GEMMS, *(target.prefix for target in TARGETS.values()))
    gemms = [path for path in texts if names[path].startswith((*GEMMS, TARGETS[hardware].prefix))]
    layer = [path for path in texts if not names[path].startswith(of_any)]
    shared = [path for path in texts if names[path] in SHARED]
    libraries = {"cutlass_grouped_gemms": gemms, "cutlass_grouped": layer}
    return {
        name: {path: texts[path] for path in {*paths, *shared}} for name, paths in libraries.items()
    }


def build(hardware):
    """Paths of the two libraries for a key of TARGETS, each compiled if it is not there yet.

    Raises:
        RuntimeError: there is no CUTLASS, or as `build_library` does.
    """
    target, folders = TARGETS[hardware], cutlass_folders()
    return [
        build_library(
            name,
            texts,
            architecture=target.architecture,
            flags=target.flags,
            include_folders=folders,
            headers_version=(folders[0] / "cutlass" / "version.h").read_text(),
        )
        for name, texts in sources(hardware).items()
    ]


@lru_cache
def load_kernels():
    """The modules compiled for sm_90: one with `find_tile`, one with `run_layer` and `run_renorm`.

    Raises RuntimeError as `build` does.
    """
    return [load_library(library) for library in build("sm_90")]

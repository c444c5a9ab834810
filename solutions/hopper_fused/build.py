"""build: compile the CUDA sources on first use for sm_90a, and load them; for main.py."""

from functools import lru_cache
from pathlib import Path

from ..common.host.build_library import build_library, load_library, read_sources

ARCHITECTURE = "9.0a"  # wgmma and setmaxnreg are not in plain sm_90


@lru_cache
def load_kernels():
    """Return the compiled module, with the functions that common/cuda/host/binding.cu exports.

    Raises RuntimeError as `build_library` does.
    """
    sources = read_sources(Path(__file__).parent)
    return load_library(
        build_library("hopper_fused", sources, architecture=ARCHITECTURE)
    )

"""build: the CUDA sources' library, compiled for sm_90a on first use."""

from functools import lru_cache
from pathlib import Path

from ..common.host.build_library import build_library, load_library, read_sources

ARCHITECTURE = "9.0a"  # wgmma and setmaxnreg are not in plain sm_90


@lru_cache
def load_kernels():
    """The compiled module, which exports binding.cu's functions. Raises RuntimeError as
    `build_library` does.
    """
    sources = read_sources(Path(__file__).parent)
    return load_library(build_library("hopper_fused", sources, architecture=ARCHITECTURE))

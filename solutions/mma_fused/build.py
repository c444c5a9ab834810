"""build: the CUDA sources' library for the architecture of the GPU that is here, compiled on first
use.
"""

import os
from functools import lru_cache
from pathlib import Path

import torch

from ..common.host.build_library import build_library, load_library, read_sources
from .targets import TARGETS


def architecture():
    """Compute capability, such as "9.0": the current GPU's; without a GPU TVM_FFI_CUDA_ARCH_LIST's
    first, or "9.0".
    """
    if torch.cuda.is_available():
        return "{}.{}".format(*torch.cuda.get_device_capability())
    return (os.environ.get("TVM_FFI_CUDA_ARCH_LIST") or "9.0").split()[0].rstrip("af")


@lru_cache
def load_kernels():
    """The compiled module, which exports binding.cu's functions.

    Raises RuntimeError as `build_library` does, and for an architecture without an entry in
    TARGETS.
    """
    here = architecture()
    if here not in TARGETS:
        raise RuntimeError(
            f"mma_fused: the GPU has compute capability {here}, want one of {', '.join(TARGETS)}"
        )
    sources = read_sources(Path(__file__).parent)
    return load_library(
        build_library("mma_fused", sources, architecture=here, flags=TARGETS[here].flags())
    )

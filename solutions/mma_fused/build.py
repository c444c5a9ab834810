"""build: compile the CUDA sources for the current GPU, on first use, and load them.

main.py calls `load_kernels`.
"""

import os
from functools import lru_cache
from pathlib import Path

import torch

from ..common.host.build_library import build_library, load_library, read_sources
from .targets import TARGETS


def architecture():
    """Return the current GPU's compute capability, such as "9.0".

    Without a GPU it is the first of TVM_FFI_CUDA_ARCH_LIST, or "9.0".
    """
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        return f"{major}.{minor}"

    architectures = os.environ.get("TVM_FFI_CUDA_ARCH_LIST") or "9.0"
    return architectures.split()[0].rstrip("af")


@lru_cache
def load_kernels():
    """Return the compiled module, with the functions that common/cuda/host/binding.cu exports.

    Raises RuntimeError as `build_library` does, and for an architecture without an entry in
    TARGETS.
    """
    here = architecture()
    if here not in TARGETS:
        want = ", ".join(TARGETS)
        raise RuntimeError(
            f"mma_fused: the GPU has compute capability {here}, want one of {want}"
        )

    sources = read_sources(Path(__file__).parent)
    flags = TARGETS[here].flags()
    library = build_library("mma_fused", sources, architecture=here, flags=flags)
    return load_library(library)

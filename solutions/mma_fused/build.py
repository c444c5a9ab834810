"""build: the CUDA sources' library for the architecture of the GPU that is here, compiled on first use."""

from functools import lru_cache
from pathlib import Path

import torch

from .kernels.build_library import build_library, load_library, read_sources
from .targets import TARGETS


def architecture():
    """Compute capability of the current GPU, "9.0"; that one without any, for who compiles ahead."""
    if not torch.cuda.is_available():
        return "9.0"
    return "{}.{}".format(*torch.cuda.get_device_capability())


@lru_cache
def load_kernels():
    """The compiled module, with `run_layer` and `run_renorm`.

    Raises RuntimeError as `build_library` does, and for an architecture without an entry in TARGETS.
    """
    here = architecture()
    if here not in TARGETS:
        raise RuntimeError(f"mma_fused: the GPU has compute capability {here}, want one of {', '.join(TARGETS)}")
    sources = read_sources(Path(__file__).parent)
    return load_library(build_library("mma_fused", sources, architecture=here, flags=TARGETS[here].flags()))

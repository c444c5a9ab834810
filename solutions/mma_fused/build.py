"""build: the CUDA sources' library for the architecture of the GPU that is here, compiled on first use."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from .kernels.build_library import build_library, load_library, read_sources


class Target(NamedTuple):
    """What config.cuh is told. smem_kib: shared memory of a CTA at most; cvt: there is an E4M3 conversion."""

    smem_kib: int
    tma: bool
    cvt: bool

    def flags(self):
        """Of nvcc."""
        values = {"SMEM_KIB": self.smem_kib, "TMA": int(self.tma), "CVT": int(self.cvt)}
        return tuple(f"-DMMA_FUSED_{name}={value}" for name, value in values.items())


TARGETS = {
    "8.0": Target(163, False, False),
    "8.6": Target(99, False, False),
    "8.9": Target(99, False, True),
    "9.0": Target(227, True, True),
    "10.0": Target(227, True, True),
    "10.3": Target(227, True, True),
    "12.0": Target(99, True, True),
}


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

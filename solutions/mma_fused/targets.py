"""targets: with which macros build.py compiles the CUDA kernel, by compute capability."""

from typing import NamedTuple


class Target(NamedTuple):
    """Macros of one_launch/config.cuh."""

    smem_kib: int  # shared memory limit of a CTA
    tma: bool
    cvt: bool  # E4M3 conversion in hardware

    def flags(self):
        """Return nvcc's flags."""
        return (
            f"-DMMA_FUSED_SMEM_KIB={self.smem_kib}",
            f"-DMMA_FUSED_TMA={int(self.tma)}",
            f"-DMMA_FUSED_CVT={int(self.cvt)}",
        )


TARGETS = {
    "8.0": Target(163, False, False),
    "8.6": Target(99, False, False),
    "8.9": Target(99, False, True),
    "9.0": Target(227, True, True),
    "10.0": Target(227, True, True),
    "10.3": Target(227, True, True),
    "12.0": Target(99, True, True),
}

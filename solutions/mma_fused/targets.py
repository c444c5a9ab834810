"""targets: how the kernel is compiled for each architecture, by compute capability."""

from typing import NamedTuple


class Target(NamedTuple):
    """Macros of one_launch/config.cuh. smem_kib: shared memory limit of a CTA; cvt: E4M3 conversion
    in hardware.
    """

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

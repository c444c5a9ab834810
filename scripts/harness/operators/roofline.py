"""The roofline bound: the least time a workload can take, with every byte moved once and every FLOP done once."""

from dataclasses import dataclass

# Measured ceilings of this device: a read of device memory, and dense GEMMs of large matrices (FP8: 8192^3).
MEASURED_ON = "NVIDIA H200"
BYTES_PER_SECOND = 4.46e12
FLOPS_PER_SECOND = 1446e12
BF16_FLOPS_PER_SECOND = 780e12


@dataclass(frozen=True)
class Counts:
    """What a bound takes from a routing. rows: (token, local expert) pairs; tokens, active: those with a row."""

    rows: int
    tokens: int
    active: int


@dataclass(frozen=True)
class Bound:
    """What one workload needs. rows, active: as in Counts.

    flops_per_second: the device's ceiling for GEMMs of this dtype.
    """

    seq_len: int
    rows: int
    active: int
    bytes: int
    flops: int
    flops_per_second: float = FLOPS_PER_SECOND

    @property
    def memory_ms(self) -> float:
        return self.bytes / BYTES_PER_SECOND * 1e3

    @property
    def compute_ms(self) -> float:
        return self.flops / self.flops_per_second * 1e3

    @property
    def ms(self) -> float:
        return max(self.memory_ms, self.compute_ms)

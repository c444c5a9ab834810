"""The roofline bound: the least time a workload can take, with every byte moved once and every FLOP
done once.
"""

from dataclasses import dataclass

MEASURED_ON = "NVIDIA H200"  # of all bounds that are not asked for on another GPU
H100 = "NVIDIA H100 80GB HBM3"
# Measured: bytes/s of a read of device memory, FLOP/s of dense GEMMs of large matrices (FP8:
# 8192^3).
CEILINGS = {
    MEASURED_ON: {"bytes": 4.46e12, "fp8": 1446e12, "bf16": 780e12},
    H100: {"bytes": 3.15e12, "fp8": 1488e12, "bf16": 757e12},
}


@dataclass(frozen=True)
class Counts:
    """What a bound takes from a routing.

    rows: (token, local expert) pairs; tokens, active: tokens and experts with a row.
    """

    rows: int
    tokens: int
    active: int


@dataclass(frozen=True)
class Bound:
    """What one workload needs on a GPU, a key of CEILINGS.

    rows, active: as in Counts. dtype: fp8 or bf16, of GEMMs.
    """

    rows: int
    active: int
    bytes: int
    flops: int
    dtype: str = "fp8"
    gpu: str = MEASURED_ON

    @property
    def memory_ms(self) -> float:
        return self.bytes / CEILINGS[self.gpu]["bytes"] * 1e3

    @property
    def compute_ms(self) -> float:
        return self.flops / CEILINGS[self.gpu][self.dtype] * 1e3

    @property
    def ms(self) -> float:
        return max(self.memory_ms, self.compute_ms)

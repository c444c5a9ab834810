"""The roofline bound: the least time a workload can take, with every byte moved once and every FLOP
done once, at the best rates that were measured on a GPU of its kind.
"""

from dataclasses import dataclass
from pathlib import Path

from moebench.core.schema import Strict

MEASURED_ON = "NVIDIA H200"  # of all bounds that are not asked for on another GPU
H100 = "NVIDIA H100 80GB HBM3"
READINGS = Path(__file__).with_name("ceilings.jsonl")  # tools/ceilings.py adds to it
RATES = ("bytes", "fp8", "bf16")

# What served records and profiles were made with that do not say it.
EARLIER_CEILINGS = {"bytes": 4.46e12, "fp8": 1446e12, "bf16": 780e12}


class Reading(Strict):
    """What one GPU reached: bytes/s of a read of device memory, FLOP/s of dense GEMMs of large
    matrices (8192^3). None: not measured.

    date: ISO 8601. of: the program that measured. driver: of CUDA.
    """

    hardware: str
    date: str
    bytes: float
    fp8: float
    bf16: float | None = None
    of: str
    driver: str | None = None


def ceilings(path: Path = READINGS) -> dict[str, dict[str, float]]:
    """Return GPU -> RATES -> the best reading on any GPU of that name."""
    best: dict[str, dict[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        reading = Reading.model_validate_json(line)
        rates = best.setdefault(reading.hardware, {})
        for name in RATES:
            rate = getattr(reading, name) or 0.0
            if rate > rates.get(name, 0.0):
                rates[name] = rate
    return best


CEILINGS = ceilings()


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

    @property
    def limit(self) -> str:
        """Return which of RATES the bound divides by."""
        return "bytes" if self.memory_ms >= self.compute_ms else self.dtype

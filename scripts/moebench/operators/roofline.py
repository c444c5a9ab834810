"""The roofline bound: the least time a workload can take on a GPU.

Every byte is moved once and every FLOP done once, at the best rates that were measured on a GPU of
that kind (ceilings.jsonl): ms = max(bytes / 4.7e12, flops / 1.5e15) * 1e3 on an H200. The operators
count bytes and FLOPs of a workload, and reports show the bound beside times.
"""

from dataclasses import dataclass
from pathlib import Path

from moebench.core.schema import Strict

MEASURED_ON = "NVIDIA H200"  # the GPU of all bounds that are not asked for on another
H100 = "NVIDIA H100 80GB HBM3"
READINGS = Path(__file__).with_name("ceilings.jsonl")  # tools/ceilings.py adds to it
RATES = ("bytes", "fp8", "bf16")  # bytes/s, and FLOP/s of GEMMs in these dtypes

# Ceilings of older records, served and profiles, that do not state theirs
EARLIER_CEILINGS = {"bytes": 4.46e12, "fp8": 1446e12, "bf16": 780e12}


class Reading(Strict):
    """The rates that one GPU reached, a line of READINGS. None: not measured.

    bytes: per second, of a read of device memory. fp8, bf16: FLOP/s of dense GEMMs of 8192^3.
    date: ISO 8601. of: the program that measured. driver: CUDA's.
    """

    hardware: str
    date: str
    bytes: float
    fp8: float
    bf16: float | None = None
    of: str
    driver: str | None = None


def ceilings(path: Path = READINGS) -> dict[str, dict[str, float]]:
    """Return GPU's name -> rate's name -> the best reading on any GPU of that name."""
    best = {}
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
    """What a bound depends on of a workload's routing.

    rows: (token, local expert) pairs. tokens: those with a row. active: experts with a row.
    """

    rows: int
    tokens: int
    active: int


@dataclass(frozen=True)
class Bound:
    """What a workload needs, and how long that takes at least on a GPU.

    rows, active: as in Counts. bytes, flops: moved and done in all. dtype: of the GEMMs, a rate's
    name. gpu: a key of CEILINGS.
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
        """Which of RATES limits the workload."""
        return "bytes" if self.memory_ms >= self.compute_ms else self.dtype

"""What is tried for each of the two grouped GEMMs, and the pair that their times choose.

The rows are padded once for both, so the two of a pair have one BLOCK_M. Each is timed apart from the other.
"""

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

BLOCK_MS = (16, 32, 64, 128)
GEMM2_BLOCK_NS = (64, 128)  # gemm1's column tile is one quantisation group of h, 128
FIRST_GROUP = 8
GROUPS = (1, 4, 8, 16, 32)
PER_SM = (1, 2, 3)
WARPS = (4, 8)
STAGES = (3, 4, 5, 6)


class Candidate(NamedTuple):
    """One GEMM with one tile. fused: gemm1 applies SwiGLU itself; False for gemm2."""

    stage: str  # gemm1 or gemm2
    fused: bool
    block_m: int
    block_n: int
    group: int
    per_sm: int
    num_warps: int
    num_stages: int

    def __str__(self) -> str:
        form = {("gemm1", True): " with SwiGLU", ("gemm1", False): ", SwiGLU apart"}.get(self[:2], "")
        return "{} m{}-n{}-g{}-p{}-w{}-s{}".format(self.stage, *self[2:]) + form


def useful_block_ms(rows_per_expert: float) -> list[int]:
    """BLOCK_Ms from a quarter to twice what would hold the rows of an expert that has any in one tile."""
    holds = next((m for m in BLOCK_MS if m >= rows_per_expert), BLOCK_MS[-1])
    return [m for m in BLOCK_MS if holds // 4 <= m <= 2 * holds]


def grid(block_ms: Iterable[int]) -> list[Candidate]:
    """Every candidate with the first group; other groups are tried for the best pair alone (`other_groups`)."""
    found = []
    for block_m, *rest in product(block_ms, [FIRST_GROUP], PER_SM, WARPS, STAGES):
        found += [Candidate("gemm1", fused, block_m, 128, *rest) for fused in (True, False)]
        found += [Candidate("gemm2", False, block_m, block_n, *rest) for block_n in GEMM2_BLOCK_NS]
    return found


def other_groups(pair: Iterable[Candidate]) -> list[Candidate]:
    return [each._replace(group=group) for each in pair for group in GROUPS if group != each.group]


def best(times: dict[Candidate, float], stage: str, block_m: int) -> Candidate | None:
    """The fastest of a GEMM at one BLOCK_M; of equal ones the first in `times`."""
    here = [each for each in times if (each.stage, each.block_m) == (stage, block_m)]
    return min(here, key=times.get, default=None)


def best_pair(times: dict[Candidate, float]) -> tuple[Candidate, ...]:
    """gemm1 and gemm2 of one BLOCK_M with the least sum; of equal pairs the smaller BLOCK_M's; () without any."""
    pairs = [(best(times, "gemm1", m), best(times, "gemm2", m)) for m in BLOCK_MS]
    return min((pair for pair in pairs if None not in pair), key=lambda pair: sum(map(times.get, pair)), default=())

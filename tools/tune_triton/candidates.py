"""What is tried for each of the two grouped GEMMs, and the pair that their times choose.

The rows are padded once for both, so the two of a pair have one BLOCK_M. Each is timed apart from
the other.
"""

from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

# GEMM, whether gemm1 applies SwiGLU itself, column tile; gemm1's is one quantisation group of h
FORMS = (("gemm1", True, 128), ("gemm1", False, 128), ("gemm2", False, 64), ("gemm2", False, 128))
BLOCK_MS = (16, 32, 64, 128)
FIRST_GROUP = 8
GROUPS = (1, 4, 8, 16, 32)
PER_SM = (1, 2, 3)
WARPS = (4, 8)
STAGES = (3, 4, 5, 6)


class Candidate(NamedTuple):
    """One GEMM with one tile. It stands in for the solution's Tile, whose fields come first."""

    block_m: int
    block_n: int
    group: int
    per_sm: int
    num_warps: int
    num_stages: int
    programs: int
    stage: str  # gemm1 or gemm2
    fused: bool  # gemm1 applies SwiGLU itself; False for gemm2


def useful_block_ms(rows_per_expert: float) -> list[int]:
    """BLOCK_Ms from a quarter to twice what would hold the rows of an expert that has any in one
    tile.
    """
    holds = next((m for m in BLOCK_MS if m >= rows_per_expert), BLOCK_MS[-1])
    return [m for m in BLOCK_MS if holds // 4 <= m <= 2 * holds]


def grid(block_ms: list[int], multiprocessors: int) -> list[Candidate]:
    """gemm1's, then gemm2's, with the first group; others are tried for the best pair alone
    (`other_groups`).
    """
    return [
        Candidate(m, n, FIRST_GROUP, per_sm, warps, stages, per_sm * multiprocessors, stage, fused)
        for (stage, fused, n), m, per_sm, warps, stages in product(
            FORMS, block_ms, PER_SM, WARPS, STAGES
        )
    ]


def other_groups(pair: tuple[Candidate, ...]) -> list[Candidate]:
    return [each._replace(group=group) for each in pair for group in GROUPS if group != each.group]


def choice_of(gemm1: Candidate, gemm2: Candidate) -> SimpleNamespace:
    """What stands in for the solution's Choice; of a GEMM that is not run any candidate will do."""
    return SimpleNamespace(gemm1=gemm1, gemm2=gemm2, fused=gemm1.fused, tma=True)


def best(times: dict[Candidate, float | str], stage: str, block_m: int) -> Candidate | None:
    """The fastest of a GEMM at one BLOCK_M, of equal ones the first. times: microseconds, or why
    there are none.
    """
    timed = [each for each, us in times.items() if (each.stage, each.block_m) == (stage, block_m)]
    return min(
        (each for each in timed if isinstance(times[each], float)), key=times.get, default=None
    )


def best_pair(times: dict[Candidate, float | str]) -> tuple[Candidate, ...]:
    """gemm1 and gemm2 of one BLOCK_M with the least sum; of equal pairs the smaller BLOCK_M's; ()
    without any.
    """
    pairs = [(best(times, "gemm1", m), best(times, "gemm2", m)) for m in BLOCK_MS]
    return min(
        (pair for pair in pairs if None not in pair),
        key=lambda pair: sum(map(times.get, pair)),
        default=(),
    )

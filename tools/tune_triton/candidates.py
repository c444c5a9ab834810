"""The tiles that tune.py tries for triton_fused_v2's two grouped GEMMs, and the choice by time.

The GEMMs are timed separately. A pair of tiles, gemm1's and gemm2's, has the same BLOCK_M, because
rows are padded to whole tiles once for both.
"""

from types import SimpleNamespace
from typing import NamedTuple

# (GEMM, whether gemm1 applies SwiGLU itself, BLOCK_N). gemm1's BLOCK_N is always 128, a
# quantisation group of h.
FORMS = (
    ("gemm1", True, 128),
    ("gemm1", False, 128),
    ("gemm2", False, 64),
    ("gemm2", False, 128),
)
BLOCK_MS = (16, 32, 64, 128)
FIRST_GROUP = 8
GROUPS = (1, 4, 8, 16, 32)
PROGRAMS_PER_SM = (1, 2, 3)
WARPS = (4, 8)
PIPELINE_STAGES = (3, 4, 5, 6)


class Candidate(NamedTuple):
    """A tile for one of the GEMMs.

    It is passed to the solution's functions as their Tile, whose fields come first.
    """

    block_m: int
    block_n: int
    group: int  # tiles that follow one another in order of rows (tile_order.py)
    per_sm: int  # programs on each SM
    num_warps: int
    num_stages: int
    programs: int  # on the whole GPU
    stage: str  # gemm1 or gemm2
    fused: bool  # gemm1 applies SwiGLU itself; False for gemm2


# microseconds, or the reason why it could not be timed
Times = dict[Candidate, float | str]


def useful_block_ms(rows_per_expert: float) -> list[int]:
    """Return the BLOCK_Ms worth trying: a quarter to twice the one that holds an expert's rows.

    rows_per_expert: the mean over experts that have any rows.
    """
    large_enough = [block_m for block_m in BLOCK_MS if block_m >= rows_per_expert]
    holding = min(large_enough, default=max(BLOCK_MS))
    least = holding // 4
    most = holding * 2
    return [block_m for block_m in BLOCK_MS if least <= block_m <= most]


def grid(block_ms: list[int], multiprocessors: int) -> list[Candidate]:
    """Return gemm1's candidates, then gemm2's, all with FIRST_GROUP.

    Other groups are tried for the best pair only (`other_groups`).
    """
    candidates = []
    for stage, fused, block_n in FORMS:
        for block_m in block_ms:
            for per_sm in PROGRAMS_PER_SM:
                for num_warps in WARPS:
                    for num_stages in PIPELINE_STAGES:
                        candidate = Candidate(
                            block_m,
                            block_n,
                            FIRST_GROUP,
                            per_sm,
                            num_warps,
                            num_stages,
                            per_sm * multiprocessors,
                            stage,
                            fused,
                        )
                        candidates.append(candidate)
    return candidates


def other_groups(pair: tuple[Candidate, ...]) -> list[Candidate]:
    """Return both candidates of a pair again, with each of the other GROUPS in place of theirs."""
    others = []
    for candidate in pair:
        for group in GROUPS:
            if group != candidate.group:
                others.append(candidate._replace(group=group))
    return others


def choice_of(gemm1: Candidate, gemm2: Candidate) -> SimpleNamespace:
    """Return an object with the fields of the solution's Choice.

    To run only one of the GEMMs, pass any candidate for the other.
    """
    return SimpleNamespace(gemm1=gemm1, gemm2=gemm2, fused=gemm1.fused, tma=True)


def best(times: Times, stage: str, block_m: int) -> Candidate | None:
    """Return the fastest candidate for a GEMM with a BLOCK_M; None if none was timed.

    stage: "gemm1" or "gemm2".
    """
    timed = []
    for candidate, us in times.items():
        if (candidate.stage, candidate.block_m) != (stage, block_m):
            continue
        if isinstance(us, float):
            timed.append(candidate)
    return min(timed, key=times.get, default=None)


def best_pair(times: Times) -> tuple[Candidate, ...]:
    """Return the pair (gemm1's, gemm2's candidate) with the least sum of times, or ().

    Of equal pairs it is the one with the smaller BLOCK_M.
    """
    us_of_pairs = {}
    for block_m in BLOCK_MS:
        gemm1 = best(times, "gemm1", block_m)
        gemm2 = best(times, "gemm2", block_m)
        if gemm1 and gemm2:
            us_of_pairs[gemm1, gemm2] = times[gemm1] + times[gemm2]
    return min(us_of_pairs, key=us_of_pairs.get, default=())

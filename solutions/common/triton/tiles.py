"""tiles: which tile each GEMM uses, by GPU, definition and token count. Host code only; no GPU is
asked.

tiles.csv has what tools/tune_triton found: a line for a GPU, sizes and token count. Packing keeps
the lines of the definition's sizes alone. Other GPUs, definitions and token counts go by `by_rule`.
Rows are padded once, to gemm1's BLOCK_M, which is a multiple of gemm2's.
"""

import csv
from functools import cache, lru_cache
from math import ceil, log
from pathlib import Path
from typing import NamedTuple


class Tile(NamedTuple):
    block_m: int  # rows of a tile
    block_n: int  # columns of a tile; 128 in gemm1, whose column tile is a quantisation group
    group: int  # row tiles visited before the next column tile
    per_sm: int  # programs for each SM
    num_warps: int
    num_stages: int
    programs: int = 0  # per_sm x SMs, filled in when the device is known


class Choice(NamedTuple):
    gemm1: Tile
    gemm2: Tile
    fused: bool  # gemm1 applies SwiGLU and quantises; otherwise swiglu_quant does
    # h lies in expert order and gemm2 reads it through TMA; otherwise in pair order, gathered by
    # index
    tma: bool


ARCHITECTURES = (
    "sm_90",
    "sm_100",
    "sm_103",
    "sm_120",
)  # with TMA; run by us on sm_90 alone, else only compiled
NEAR = 4  # a tabled token count serves others up to so many times smaller or larger


def by_rule(architecture, multiprocessors, geometry, share, num_tokens):
    """The Choice for a GPU, definition or token count without a tuned table; arguments as `choose`
    has them.

    It generalises the H200's table of 32 experts, H 7168, I 2048 by two numbers. Rows per expert
    decide BLOCK_M: a second row tile reads the weights again, and half a tile of padding is
    multiplied for nothing. The number of tiles decides the rest: where there are too few for the
    SMs, narrow tiles and deep pipelines keep more bytes in flight.
    """
    local, hidden, inter = geometry
    active = local * (1 - (1 - share) ** num_tokens)  # experts that have a row, if all are alike
    rows = num_tokens * share * local / active
    block_m = 16 if rows <= 12 else 32 if rows <= 48 else 64
    row_tiles = active * ceil(rows / block_m)
    few1, few2 = (multiprocessors / (row_tiles * columns / 128) for columns in (inter, hidden))
    wgmma = architecture == "sm_90"  # elsewhere four warps would spill gemm1's sums
    most_stages = 3 if architecture == "sm_120" else 6  # 99 KB of shared memory there, else 227
    if block_m == 64:  # two sums of 128 x 64 would leave the registers
        gemm1, gemm2 = Tile(64, 128, 16, 2, 4 if wgmma else 8, 3), Tile(64, 128, 16, 2, 4, 3)
    elif block_m == 32:
        gemm1 = Tile(32, 128, 32, 2, 4, 3) if wgmma else Tile(32, 128, 8, 1, 8, 3)
        gemm2 = Tile(32, 128, 16, 2, 4, 5)
    else:
        per_sm, stages = (1, 6) if few1 >= 2 else (1, 5) if few1 >= 1 else (2, 3)
        gemm1 = Tile(16, 128, 8, per_sm, 4, stages)
        gemm2 = Tile(16, 64, 8, 1, 4, 6) if few2 >= 1 else Tile(16, 128, 8, 3, 4, 4)
    gemm1, gemm2 = (
        tile._replace(num_stages=min(tile.num_stages, most_stages)) for tile in (gemm1, gemm2)
    )
    return Choice(gemm1, gemm2, fused=block_m == 32 or block_m == 16 and few1 < 2, tma=True)


def sizes_of(local_experts, hidden, intermediate):
    """A geometry as the column `sizes` of tiles.csv has it."""
    return f"e{local_experts}_h{hidden}_i{intermediate}"


@cache
def tuned():
    """What tiles.csv has: (gpu, sizes) -> token count -> Choice."""
    found = {}
    with Path(__file__).with_name("tiles.csv").open(encoding="utf-8", newline="") as file:
        for gpu, sizes, num_tokens, _triton, *numbers in list(csv.reader(file))[1:]:
            fused, tma, *tiles = map(int, numbers)
            choice = Choice(Tile(*tiles[:6]), Tile(*tiles[6:]), bool(fused), bool(tma))
            found.setdefault((gpu, sizes), {})[int(num_tokens)] = choice
    return found


@lru_cache(maxsize=4096)
def choose(architecture, gpu, multiprocessors, geometry, share, num_tokens):
    """Tiles for num_tokens >= 1 tokens: of the tabled token count that is nearest by ratio, if it
    is near, or by rule.

    Args:
        architecture: one of ARCHITECTURES; gpu: the name CUDA gives it.
        multiprocessors: SMs of the GPU; a GEMM's grid is per_sm times as many programs.
        geometry: (E_local, H, I).
        share: part of the tokens that an expert gets on average, top-k / E.

    Raises:
        ValueError: an architecture without TMA.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"architecture: got {architecture}, want one of {', '.join(ARCHITECTURES)}"
        )
    table = tuned().get((gpu, sizes_of(*geometry)), {})
    distance = {tabled: abs(log(tabled / num_tokens)) for tabled in table}
    nearest = min(distance, key=distance.get, default=None)
    if nearest is not None and distance[nearest] <= log(NEAR):
        choice = table[nearest]
    else:
        choice = by_rule(architecture, multiprocessors, geometry, share, num_tokens)
    tiles = [
        tile._replace(programs=tile.per_sm * multiprocessors)
        for tile in (choice.gemm1, choice.gemm2)
    ]
    return choice._replace(gemm1=tiles[0], gemm2=tiles[1])

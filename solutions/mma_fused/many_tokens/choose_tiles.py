"""choose_tiles: which Triton GEMMs and tiles many_tokens.py uses, by architecture and sizes.

Host code only, which queries no GPU. Up to sm_89 there is no TMA, and up to sm_86 Triton has no FP8
at all: there it is fp16 GEMMs, whose tiles fit the 99 KB of shared memory of sm_86 and sm_89. From
sm_90 on it is triton_fused_v2's FP8 GEMMs with its tiles. With no tile does a kernel read spilled
registers back. Tiles for sm_100 and later have not been run; those for sm_80 and sm_89 were run on
an H200 only.
"""

from functools import lru_cache
from typing import NamedTuple

from ...common.triton.gemms.expert_tiles import Tile
from ...common.triton.gemms.tiles import choose
from ...common.triton.mxfp4.layer_mxfp4 import choose_mxfp4

FP16_GEMMS = ("sm_80", "sm_86", "sm_89")
WITHOUT_FP8 = ("sm_80", "sm_86")


class Fp16Choice(NamedTuple):
    gemm1: Tile
    gemm2: Tile
    # kernels load FP8 as uint8, as Triton has no FP8 on this architecture
    as_bytes: bool


@lru_cache(maxsize=4096)
def choose_many(architecture, gpu, multiprocessors, geometry, share, num_tokens):
    """Return the tiles for num_tokens >= 1 tokens. Arguments are those of `choose` in tiles.py.

    Returns:
        A `Choice` of tiles.py, or an `Fp16Choice` where FP16_GEMMS has the architecture.
    """
    if architecture not in FP16_GEMMS:
        return choose(architecture, gpu, multiprocessors, geometry, share, num_tokens)

    choice = fp16_tiles(geometry, share, num_tokens, architecture in WITHOUT_FP8)
    gemm1 = choice.gemm1._replace(programs=choice.gemm1.per_sm * multiprocessors)
    gemm2 = choice.gemm2._replace(programs=choice.gemm2.per_sm * multiprocessors)
    return choice._replace(gemm1=gemm1, gemm2=gemm2)


def fp16_tiles(geometry, share, num_tokens, as_bytes):
    """Return the Fp16Choice by the rows that an expert with any rows has on average.

    block_m grows with them, because each further row tile reads the weights again.
    """
    local_experts = geometry[0]
    active_experts = local_experts * (1 - (1 - share) ** num_tokens)
    rows_per_expert = num_tokens * share * local_experts / active_experts
    if rows_per_expert <= 12:
        gemm1 = Tile(16, 128, 128, 8, 2, 4, 3)
        gemm2 = Tile(16, 128, 128, 8, 3, 4, 3)
    elif rows_per_expert <= 48:
        gemm1 = Tile(32, 128, 64, 16, 1, 8, 4)
        gemm2 = Tile(32, 128, 128, 16, 2, 4, 3)
    else:
        gemm1 = Tile(64, 128, 64, 16, 1, 8, 4)
        gemm2 = Tile(64, 128, 64, 16, 2, 8, 4)
    return Fp16Choice(gemm1, gemm2, as_bytes)


def choose_many_mxfp4(architecture, multiprocessors, rows_per_expert):
    """Return the tiles for MXFP4 experts by the mean of rows per expert.

    It is an Fp16Choice where FP16_GEMMS has the architecture, else a `Choice` of tiles.py.
    """
    if architecture not in FP16_GEMMS:
        return choose_mxfp4(multiprocessors, rows_per_expert)

    if rows_per_expert <= 12:
        tile = Tile(16, 128, 128, 8, 2, 4, 3)
    elif rows_per_expert <= 48:
        tile = Tile(32, 128, 128, 8, 1, 8, 3)
    else:
        tile = Tile(64, 32, 128, 8, 1, 8, 3)
    tile = tile._replace(programs=tile.per_sm * multiprocessors)
    return Fp16Choice(tile, tile, architecture in WITHOUT_FP8)

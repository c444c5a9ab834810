"""tiles: which tile each FP8 GEMM in Triton uses, by GPU, definition and token count.

Host code only, which queries no GPU; triton_fused_v2 and mma_fused call `choose` before each launch
of layer.py.

tiles.csv has the fastest tiles that tools/tune_triton measured: a line for a GPU, sizes and token
count. Packing keeps only the lines of the definition's sizes. `by_rule` chooses for other GPUs,
definitions and token counts. Rows are padded once, to gemm1's BLOCK_M, which is a multiple of
gemm2's.
"""

import csv
from functools import cache, lru_cache
from math import ceil, log
from pathlib import Path
from typing import NamedTuple


class Tile(NamedTuple):
    block_m: int  # rows of a tile
    # columns of a tile; 128 in gemm1, whose column tile is a quantisation group
    block_n: int
    group: int  # row tiles visited before the next column tile (tile_order.py)
    per_sm: int  # programs for each SM
    num_warps: int
    num_stages: int
    programs: int = 0  # per_sm x SMs, filled in when the device is known


class Choice(NamedTuple):
    gemm1: Tile
    gemm2: Tile
    fused: bool  # gemm1 applies SwiGLU and quantises; otherwise swiglu_quant does
    # h is in expert order and gemm2 reads it through TMA; otherwise in pair order, gathered by
    # index (gemm1.py)
    tma: bool


# GPUs with TMA; we have run sm_90, and only compiled for the others
ARCHITECTURES = ("sm_90", "sm_100", "sm_103", "sm_120")
NEAR = 4  # a tabled token count serves others up to so many times smaller or larger


def by_rule(architecture, multiprocessors, geometry, share, num_tokens):
    """Return the Choice for a GPU, definition or token count without a tuned table.

    Arguments are those of `choose`. The rule extends the tuned tiles of an H200 for 32 experts, H
    7168 and I 2048 by two numbers. Rows per expert decide BLOCK_M: a second row tile reads the
    weights again, and half a tile of padding is multiplied for nothing. The number of tiles decides
    the rest: where there are too few for the SMs, narrow tiles and deep pipelines keep more bytes
    in flight.
    """
    local_experts, hidden, inter = geometry
    # experts that have a row, if all are alike
    active_experts = local_experts * (1 - (1 - share) ** num_tokens)
    rows_per_expert = num_tokens * share * local_experts / active_experts

    if rows_per_expert <= 12:
        block_m = 16
    elif rows_per_expert <= 48:
        block_m = 32
    else:
        block_m = 64
    row_tiles = active_experts * ceil(rows_per_expert / block_m)
    # SMs for each tile of 128 columns
    sms_per_tile1 = multiprocessors / (row_tiles * inter / 128)
    sms_per_tile2 = multiprocessors / (row_tiles * hidden / 128)

    gemm1 = gemm1_by_rule(architecture, block_m, sms_per_tile1)
    gemm2 = gemm2_by_rule(block_m, sms_per_tile2)
    # 99 KB of shared memory there, else 227
    most_stages = 3 if architecture == "sm_120" else 6
    gemm1 = gemm1._replace(num_stages=min(gemm1.num_stages, most_stages))
    gemm2 = gemm2._replace(num_stages=min(gemm2.num_stages, most_stages))

    fused = block_m == 32 or (block_m == 16 and sms_per_tile1 < 2)
    return Choice(gemm1, gemm2, fused=fused, tma=True)


def gemm1_by_rule(architecture, block_m, sms_per_tile):
    """Return gemm1's tile for BLOCK_M and the SMs that there are for each tile."""
    wgmma = architecture == "sm_90"  # elsewhere four warps would spill gemm1's sums
    if block_m == 64:  # two sums of 128 x 64 would leave the registers
        return Tile(64, 128, 16, 2, 4 if wgmma else 8, 3)
    if block_m == 32:
        return Tile(32, 128, 32, 2, 4, 3) if wgmma else Tile(32, 128, 8, 1, 8, 3)

    if sms_per_tile >= 2:
        return Tile(16, 128, 8, 1, 4, 6)
    if sms_per_tile >= 1:
        return Tile(16, 128, 8, 1, 4, 5)
    return Tile(16, 128, 8, 2, 4, 3)


def gemm2_by_rule(block_m, sms_per_tile):
    """Return gemm2's tile for BLOCK_M and the SMs that there are for each tile."""
    if block_m == 64:
        return Tile(64, 128, 16, 2, 4, 3)
    if block_m == 32:
        return Tile(32, 128, 16, 2, 4, 5)
    if sms_per_tile >= 1:
        return Tile(16, 64, 8, 1, 4, 6)
    return Tile(16, 128, 8, 3, 4, 4)


def sizes_of(local_experts, hidden, intermediate):
    """Return the text that the column `sizes` of tiles.csv has for a layer."""
    return f"e{local_experts}_h{hidden}_i{intermediate}"


@cache
def tuned():
    """Return the content of tiles.csv: (gpu, sizes) -> token count -> Choice."""
    path = Path(__file__).with_name("tiles.csv")
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))

    tables = {}
    for gpu, sizes, num_tokens, _triton, *columns in lines[1:]:
        fused, tma, *numbers = map(int, columns)
        gemm1 = Tile(*numbers[:6])
        gemm2 = Tile(*numbers[6:])
        table = tables.setdefault((gpu, sizes), {})
        table[int(num_tokens)] = Choice(gemm1, gemm2, bool(fused), bool(tma))
    return tables


@lru_cache(maxsize=4096)
def choose(architecture, gpu, multiprocessors, geometry, share, num_tokens):
    """Return the Choice for num_tokens >= 1 tokens.

    It is that of the nearest token count, by ratio, that tiles.csv has for this GPU and geometry;
    where that is more than NEAR times smaller or larger, or there is none, it is `by_rule`'s.

    Args:
        architecture: one of ARCHITECTURES.
        gpu: the name CUDA gives it.
        multiprocessors: SMs of the GPU; a GEMM's grid is per_sm times as many programs.
        geometry: (E_local, H, I).
        share: part of the tokens that an expert gets on average, top-k / E.

    Raises:
        ValueError: an architecture without TMA.
    """
    if architecture not in ARCHITECTURES:
        want = ", ".join(ARCHITECTURES)
        raise ValueError(f"architecture: got {architecture}, want one of {want}")

    table = tuned().get((gpu, sizes_of(*geometry)), {})
    distance = {tabled: abs(log(tabled / num_tokens)) for tabled in table}
    nearest = min(distance, key=distance.get, default=None)
    if nearest is not None and distance[nearest] <= log(NEAR):
        choice = table[nearest]
    else:
        choice = by_rule(architecture, multiprocessors, geometry, share, num_tokens)

    gemm1 = choice.gemm1._replace(programs=choice.gemm1.per_sm * multiprocessors)
    gemm2 = choice.gemm2._replace(programs=choice.gemm2.per_sm * multiprocessors)
    return choice._replace(gemm1=gemm1, gemm2=gemm2)

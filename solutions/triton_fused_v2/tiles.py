"""tiles: which tile each GEMM uses, by architecture, stage and token count. Host code only; no GPU is asked.

BLOCK_M is shared by both GEMMs, because rows are padded to it once; everything else is a GEMM's own.
"""

from functools import lru_cache
from typing import NamedTuple


class Tile(NamedTuple):
    block_m: int  # rows of a tile
    block_n: int  # columns of a tile; 128 in gemm1, whose column tile is a quantisation group
    group: int  # row tiles visited before the next column tile
    per_sm: int  # programs for each multiprocessor
    num_warps: int
    num_stages: int
    programs: int = 0  # per_sm x multiprocessors, filled in when the device is known


# From this many tokens on gemm1 leaves its activation to swiglu_quant; see docs/triton_fused_v2.md.
SEPARATE_SWIGLU_FROM = 1025

# (architecture, stage) -> rows: (largest T it is for, tile)
TABLE = {
    ("sm_90", "gemm1"): (
        (256, Tile(16, 128, 8, 2, 4, 3)),
        (1024, Tile(32, 128, 8, 2, 4, 3)),
        (None, Tile(64, 128, 16, 2, 4, 3)),
    ),
    ("sm_90", "gemm2"): (
        (256, Tile(16, 128, 8, 2, 4, 5)),
        (1024, Tile(32, 128, 8, 2, 4, 4)),
        (None, Tile(64, 128, 16, 2, 4, 4)),
    ),
    # compiled ahead of time only; never run by us on SM100
    ("sm_100", "gemm1"): (
        (256, Tile(16, 128, 8, 2, 4, 3)),
        (1024, Tile(32, 128, 8, 1, 8, 3)),
        (None, Tile(64, 128, 16, 2, 4, 3)),
    ),
    ("sm_100", "gemm2"): (
        (256, Tile(16, 128, 8, 2, 4, 5)),
        (1024, Tile(32, 128, 8, 2, 4, 4)),
        (None, Tile(64, 128, 16, 2, 4, 4)),
    ),
}


@lru_cache(maxsize=4096)  # it is asked twice a call
def choose_tile(architecture, stage, num_tokens, multiprocessors):
    """Tile for `num_tokens` tokens; the grid is per_sm x multiprocessors programs.

    Raises:
        ValueError: the architecture has no table.
    """
    rows = TABLE.get((architecture, stage))
    if rows is None:
        known = sorted({name for name, _ in TABLE})
        raise ValueError(f"architecture: got {architecture}, tiles are tabled for {', '.join(known)}")
    tile = next(tile for limit, tile in rows if limit is None or num_tokens <= limit)
    return tile._replace(programs=tile.per_sm * multiprocessors)

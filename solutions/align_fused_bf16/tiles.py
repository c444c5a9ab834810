"""tiles: which tiles the two GEMMs use, by architecture and rows per expert. Host code only; no GPU is asked.

The host knows T * top_k / num_experts, the mean of rows per expert, and nothing of how they are spread. BLOCK_M is
shared by both GEMMs, because rows are padded to it once.
"""

from functools import lru_cache
from typing import NamedTuple


class Tile(NamedTuple):
    block_m: int  # rows of a tile
    block_n: int  # columns of a tile
    block_k: int
    group: int  # row tiles visited before the next column tile
    per_sm: int  # programs for each multiprocessor
    num_warps: int
    num_stages: int
    programs: int = 0  # per_sm x multiprocessors, filled in when the device is known


# architecture -> rows: (largest mean of rows per expert it is for, gemm1's tile, gemm2's tile)
TABLE = {
    "sm_90": (
        (12, Tile(16, 128, 128, 8, 2, 4, 3), Tile(16, 128, 128, 8, 2, 4, 3)),
        (24, Tile(32, 128, 64, 8, 2, 4, 5), Tile(32, 128, 64, 8, 2, 4, 5)),
        (48, Tile(64, 128, 64, 8, 2, 4, 4), Tile(64, 128, 64, 8, 2, 4, 4)),
        (96, Tile(64, 128, 64, 8, 2, 4, 4), Tile(64, 128, 64, 8, 3, 4, 3)),
        (192, Tile(64, 256, 64, 8, 1, 8, 5), Tile(64, 128, 64, 8, 3, 4, 3)),
        (384, Tile(128, 256, 64, 8, 1, 8, 4), Tile(128, 128, 64, 8, 2, 8, 3)),
        (None, Tile(128, 256, 64, 8, 1, 8, 4), Tile(128, 128, 64, 8, 2, 4, 3)),
    ),
    # compiled ahead of time only; never run by us on SM100
    "sm_100": (
        (8, Tile(16, 128, 128, 8, 2, 4, 3), Tile(16, 128, 128, 8, 2, 4, 3)),
        (32, Tile(32, 128, 128, 8, 2, 4, 2), Tile(32, 128, 128, 8, 2, 4, 2)),
        (96, Tile(64, 256, 64, 8, 1, 8, 4), Tile(64, 256, 64, 8, 1, 8, 4)),
        (None, Tile(128, 256, 64, 8, 1, 8, 4), Tile(128, 256, 64, 8, 1, 8, 4)),
    ),
}


@lru_cache(maxsize=4096)
def choose_tiles(architecture, multiprocessors, num_pairs, num_experts):
    """(gemm1's tile, gemm2's tile); a grid is per_sm x multiprocessors programs.

    Raises:
        ValueError: the architecture has no table.
    """
    if architecture not in TABLE:
        raise ValueError(f"architecture: got {architecture}, tiles are tabled for {', '.join(sorted(TABLE))}")
    mean = num_pairs / num_experts
    tiles = next(tiles for limit, *tiles in TABLE[architecture] if limit is None or mean <= limit)
    return tuple(tile._replace(programs=tile.per_sm * multiprocessors) for tile in tiles)

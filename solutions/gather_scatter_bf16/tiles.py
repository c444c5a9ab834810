"""tiles: which tiles the two GEMMs use, by architecture and rows per expert. Host code only; no GPU is asked.

The host knows T * top_k / num_experts, the mean of rows per expert, and nothing of how they are spread. BLOCK_M is
shared by both GEMMs, because the table of row tiles is made once.
"""

from functools import lru_cache

from .common.triton.expert_tiles import Tile, tiles_for

# architecture -> rows: (largest mean of rows per expert it is for, gemm1's tile, gemm2's tile)
TABLE = {
    "sm_90": (
        (1.5, Tile(16, 64, 128, 8, 2, 4, 3), Tile(16, 64, 128, 8, 3, 4, 3)),
        (6, Tile(16, 64, 128, 8, 2, 4, 3), Tile(16, 128, 128, 8, 2, 4, 3)),
        (12, Tile(32, 64, 64, 8, 3, 4, 3), Tile(32, 128, 64, 8, 3, 4, 3)),
        (24, Tile(32, 64, 64, 8, 2, 4, 5), Tile(32, 128, 64, 8, 3, 4, 3)),
        (48, Tile(64, 64, 64, 8, 3, 4, 3), Tile(64, 128, 64, 8, 3, 4, 3)),
        (96, Tile(64, 64, 64, 8, 3, 4, 3), Tile(64, 128, 64, 8, 2, 4, 4)),
        (384, Tile(128, 128, 64, 8, 1, 8, 4), Tile(128, 128, 64, 8, 2, 8, 3)),
        (None, Tile(128, 128, 64, 8, 1, 8, 4), Tile(128, 128, 64, 8, 2, 4, 3)),
    ),
    # compiled ahead of time only; never run by us on SM100
    "sm_100": (
        (8, Tile(16, 64, 128, 8, 2, 4, 3), Tile(16, 128, 128, 8, 2, 4, 3)),
        (32, Tile(32, 64, 128, 8, 2, 4, 3), Tile(32, 128, 128, 8, 2, 4, 2)),
        (96, Tile(64, 128, 64, 8, 1, 8, 4), Tile(64, 256, 64, 8, 1, 8, 4)),
        (None, Tile(128, 128, 64, 8, 1, 8, 4), Tile(128, 256, 64, 8, 1, 8, 4)),
    ),
}


@lru_cache(maxsize=4096)
def choose_tiles(gpu, num_pairs, num_experts):
    """(gemm1's tile, gemm2's tile) for T * top_k pairs; see tiles_for, also for the ValueError that it raises."""
    return tiles_for(TABLE, gpu, num_pairs, num_experts)

"""tiles: which tiles the two GEMMs use, by architecture and rows per expert.

Both tiles of an entry have the same block_m, to which rows are padded once.
"""

from ..common.triton.gemms.expert_tiles import Tile, tile_chooser

# architecture -> entries: (largest mean of rows per expert, gemm1's tile, gemm2's tile)
# Tile: block_m, block_n, block_k, group, per_sm, num_warps, num_stages
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
    # compiled by us for SM100, but never run on one
    "sm_100": (
        (8, Tile(16, 128, 128, 8, 2, 4, 3), Tile(16, 128, 128, 8, 2, 4, 3)),
        (32, Tile(32, 128, 128, 8, 2, 4, 2), Tile(32, 128, 128, 8, 2, 4, 2)),
        (96, Tile(64, 256, 64, 8, 1, 8, 4), Tile(64, 256, 64, 8, 1, 8, 4)),
        (None, Tile(128, 256, 64, 8, 1, 8, 4), Tile(128, 256, 64, 8, 1, 8, 4)),
    ),
}

choose_tiles = tile_chooser(TABLE)

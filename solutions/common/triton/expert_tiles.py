"""expert_tiles: a tile of a grouped GEMM, and the choice by architecture and rows per expert. Host
code only.

The host knows T * top_k / num_experts, the mean of rows per expert, and nothing of how they are
spread.
"""

from functools import lru_cache
from typing import NamedTuple


class Tile(NamedTuple):
    block_m: int  # rows of a tile
    block_n: int  # columns of a tile
    block_k: int
    group: int  # row tiles visited before the next column tile
    per_sm: int  # programs for each SM
    num_warps: int
    num_stages: int
    programs: int = 0  # per_sm x SMs, filled in when the device is known


def tile_chooser(table):
    """choose_tiles(gpu, num_pairs, num_experts): tiles of the first row of the table whose limit is
    not exceeded.

    table: architecture -> rows (largest mean of rows per expert it is for or None, tile, tile,
    ...). gpu: see gpu_of.py; num_pairs: T * top_k. choose_tiles raises ValueError for an
    architecture without rows.
    """

    @lru_cache(maxsize=4096)
    def choose_tiles(gpu, num_pairs, num_experts):
        if gpu.architecture not in table:
            raise ValueError(
                f"architecture: got {gpu.architecture}, tiles are tabled for {', '.join(sorted(table))}"
            )
        mean = num_pairs / num_experts
        tiles = next(
            tiles for limit, *tiles in table[gpu.architecture] if limit is None or mean <= limit
        )
        return tuple(tile._replace(programs=tile.per_sm * gpu.multiprocessors) for tile in tiles)

    return choose_tiles

"""expert_tiles: a tile of a grouped GEMM, and the choice by architecture and rows per expert.

Host code only. The host knows T * top_k / num_experts, the mean of rows per expert, and nothing of
how they are spread.
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
    """Return choose_tiles(gpu, num_pairs, num_experts), which takes tiles from a table.

    The first entry that fits counts. choose_tiles raises ValueError for an architecture without
    entries. Its gpu is gpu_of.py's, its num_pairs T * top_k.

    table: architecture -> entries (limit, *tiles). limit: the most rows per expert, in the mean,
    that an entry is for; None for any.
    """

    @lru_cache(maxsize=4096)
    def choose_tiles(gpu, num_pairs, num_experts):
        if gpu.architecture not in table:
            tabled = ", ".join(sorted(table))
            raise ValueError(f"architecture: got {gpu.architecture}, tiles are tabled for {tabled}")

        rows_per_expert = num_pairs / num_experts
        tiles = first_within(table[gpu.architecture], rows_per_expert)
        return tuple(tile._replace(programs=tile.per_sm * gpu.multiprocessors) for tile in tiles)

    return choose_tiles


def first_within(rows, value):
    """Return the tiles of the first row of a table whose limit `value` does not exceed."""
    for limit, *tiles in rows:
        if limit is None or value <= limit:
            return tiles
    raise LookupError(f"the table ends below {value}")

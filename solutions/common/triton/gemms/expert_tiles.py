"""expert_tiles: tables of GEMM tiles by architecture and rows per expert, and the choice from them.

Host code only, for the bf16 solutions and mma_fused's fp16 GEMMs. (tiles.py has the FP8 GEMMs'.)
The host knows T * top_k / num_experts, the mean of rows per expert, but not each expert's number.
"""

from functools import lru_cache
from typing import NamedTuple


class Tile(NamedTuple):
    block_m: int  # rows of a tile
    block_n: int  # columns of a tile
    block_k: int  # K of a step
    group: int  # row tiles visited before the next column tile (tile_order.py)
    per_sm: int  # programs for each SM
    num_warps: int
    num_stages: int
    programs: int = 0  # per_sm x SMs, filled in when the device is known


def tile_chooser(table):
    """Return a function choose_tiles(gpu, num_pairs, num_experts), which takes tiles from a table.

    table: architecture -> entries (limit, *tiles), limits ascending. limit: the largest mean of
    rows per expert that an entry is for; None for any.

    choose_tiles returns the tiles of the first entry that fits. gpu: gpu_of.py's `Gpu`. num_pairs:
    T * top_k. It raises ValueError for an architecture that the table does not have.
    """

    @lru_cache(maxsize=4096)
    def choose_tiles(gpu, num_pairs, num_experts):
        if gpu.architecture not in table:
            tabled = ", ".join(sorted(table))
            raise ValueError(
                f"architecture: got {gpu.architecture}, tiles are tabled for {tabled}"
            )

        rows_per_expert = num_pairs / num_experts
        tiles = first_within(table[gpu.architecture], rows_per_expert)
        return tuple(
            tile._replace(programs=tile.per_sm * gpu.multiprocessors) for tile in tiles
        )

    return choose_tiles


def first_within(rows, value):
    """Return the tiles of the first entry (limit, *tiles) whose limit is None or at least value."""
    for limit, *tiles in rows:
        if limit is None or value <= limit:
            return tiles
    raise LookupError(f"the table ends below {value}")

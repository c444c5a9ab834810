"""expert_tiles: a tile of a grouped product, and the choice by architecture and rows per expert. Host code only.

The host knows T * top_k / num_experts, the mean of rows per expert, and nothing of how they are spread.
"""

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


def tiles_for(table, gpu, num_pairs, num_experts):
    """The tiles of the first row of table[architecture] whose limit is not exceeded.

    Args:
        table: architecture -> rows (largest mean of rows per expert it is for or None, tile, tile, ...).
        gpu: see gpu_of.py.

    Raises:
        ValueError: the architecture has no rows.
    """
    if gpu.architecture not in table:
        raise ValueError(f"architecture: got {gpu.architecture}, tiles are tabled for {', '.join(sorted(table))}")
    mean = num_pairs / num_experts
    tiles = next(tiles for limit, *tiles in table[gpu.architecture] if limit is None or mean <= limit)
    return tuple(tile._replace(programs=tile.per_sm * gpu.multiprocessors) for tile in tiles)

"""tiles: which route and tile a product takes, by architecture and rows of x. Host code only; no GPU is asked."""

from functools import lru_cache
from typing import NamedTuple

BLOCK = 128  # n and k are multiples of it


class Tile(NamedTuple):
    route: str  # "native", "bf16", "library" or "fp8", see block_scaled_matmul.py
    x: str  # what the product reads from `linear`: "codes", "values" rounded before, or "raw" to be rounded on the way
    block_m: int = 0  # rows of a tile
    block_n: int = 0  # columns of a tile
    block_k: int = 0  # columns of x and w in a step
    group: int = 8  # row tiles visited before the next column tile
    splits: int = 1  # shares of k, added up by another kernel
    num_warps: int = 4
    num_stages: int = 3


# architecture -> rows: (largest M it is for, tile)
TABLE = {
    "sm_90": (
        (16, Tile("bf16", "raw", 16, 64, 128, 8, 4, 4, 4)),
        (64, Tile("bf16", "values", 64, 64, 128, 8, 4, 4, 4)),
        (512, Tile("bf16", "values", 128, 128, 64, 8, 1, 8, 4)),
        (2048, Tile("bf16", "values", 256, 128, 64, 8, 1, 8, 4)),
        (None, Tile("library", "values")),
    ),
    # compiled ahead of time only; never run by us on SM100
    "sm_100": (
        (16, Tile("native", "codes", 16, 128, 256, 8, 4, 4, 4)),
        (64, Tile("native", "codes", 64, 128, 256, 8, 4, 4, 4)),
        (512, Tile("native", "codes", 128, 128, 256, 8, 1, 4, 3)),
        (None, Tile("native", "codes", 256, 128, 128, 8, 1, 4, 4)),
    ),
}


@lru_cache(maxsize=4096)
def choose_tile(architecture, num_rows, width):
    """Tile for num_rows rows of x and k = width, fitted to that width.

    Raises:
        ValueError: the architecture has no table.
    """
    rows = TABLE.get(architecture)
    if rows is None:
        raise ValueError(f"architecture: got {architecture}, tiles are tabled for {', '.join(sorted(TABLE))}")
    return fitted(next(tile for limit, tile in rows if limit is None or num_rows <= limit), width)


def fitted(tile, width):
    """The tile with steps that divide the width, and no more shares than steps."""
    if tile.route == "library":
        return tile
    block_k = tile.block_k if width % tile.block_k == 0 else BLOCK
    return tile._replace(block_k=block_k, splits=min(tile.splits, width // block_k))

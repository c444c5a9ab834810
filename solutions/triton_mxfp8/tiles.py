"""tiles: which route and tile a product takes, by architecture and rows of x.

Host code only; no GPU is asked.
"""

from functools import lru_cache
from typing import NamedTuple

BLOCK = 128  # n and k are multiples of it


class Tile(NamedTuple):
    route: str  # "native", "bf16", "library" or "fp8", see block_scaled_matmul.py
    # what the product reads from `run`: "codes", "values" rounded before, or "raw" to be rounded on
    # the way
    x: str
    block_m: int = 0  # rows of a tile
    block_n: int = 0  # columns of a tile
    block_k: int = 0  # columns of x and w in a step
    group: int = 8  # row tiles visited before the next column tile
    splits: int = 1  # shares of k, added up by another kernel
    num_warps: int = 4
    num_stages: int = 3


# (architecture, route) -> rows: (largest M it is for, tile)
TABLE = {
    ("sm_90", "bf16"): (
        (16, Tile("bf16", "raw", 16, 64, 128, 8, 4, 4, 4)),
        (64, Tile("bf16", "values", 64, 64, 128, 8, 4, 4, 4)),
        (512, Tile("bf16", "values", 128, 128, 64, 8, 1, 8, 4)),
        (None, Tile("bf16", "values", 256, 128, 64, 8, 1, 8, 4)),
    ),
    ("sm_90", "library"): ((None, Tile("library", "values")),),
    # measured for comparison, never chosen; see NOTES.md
    ("sm_90", "fp8"): (
        (16, Tile("fp8", "codes", 16, 64, 32, 8, 4, 4, 6)),
        (64, Tile("fp8", "codes", 64, 64, 32, 8, 4, 4, 6)),
        (None, Tile("fp8", "codes", 128, 128, 32, 8, 1, 8, 4)),
    ),
    # compiled ahead of time only; never run by us on SM100
    ("sm_100", "native"): (
        (16, Tile("native", "codes", 16, 128, 256, 8, 4, 4, 4)),
        (64, Tile("native", "codes", 64, 128, 256, 8, 4, 4, 4)),
        (512, Tile("native", "codes", 128, 128, 256, 8, 1, 4, 3)),
        (None, Tile("native", "codes", 256, 128, 128, 8, 1, 4, 4)),
    ),
}

# architecture -> rows: (largest M it is for, route)
ROUTES = {"sm_90": ((512, "bf16"), (None, "library")), "sm_100": ((None, "native"),)}


def _for_rows(rows, num_rows):
    """Return what a table has for num_rows, in its first row whose limit is not exceeded."""
    for limit, choice in rows:
        if limit is None or num_rows <= limit:
            return choice
    raise LookupError(f"the table ends below {num_rows} rows")


@lru_cache(maxsize=4096)
def choose_tile(architecture, num_rows, width, route=None):
    """Return the tile for num_rows rows of x and k = width, fitted to that width.

    route: None is the architecture's best.

    Raises:
        ValueError: the architecture, or the route on it, has no table.
    """
    if architecture not in ROUTES:
        tabled = ", ".join(sorted(ROUTES))
        raise ValueError(f"architecture: got {architecture}, tiles are tabled for {tabled}")

    route = route or _for_rows(ROUTES[architecture], num_rows)
    if (architecture, route) not in TABLE:
        routes = ", ".join(name for tabled, name in TABLE if tabled == architecture)
        raise ValueError(f"route: got {route!r}, on {architecture} there are: {routes}")

    tile = _for_rows(TABLE[architecture, route], num_rows)
    if route == "library":
        return tile

    block_k = tile.block_k if width % tile.block_k == 0 else BLOCK
    splits = min(tile.splits, width // block_k)
    return tile._replace(block_k=block_k, splits=splits)

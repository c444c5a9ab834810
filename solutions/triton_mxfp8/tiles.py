"""tiles: which route and tile a product takes, by architecture and number of rows of x.

A route is a way to multiply; block_scaled_matmul.py describes them. main.py calls `choose_tile`.
Host code only, which queries no GPU.
"""

from functools import lru_cache
from typing import NamedTuple

BLOCK = 128  # n and k are multiples of it


class Tile(NamedTuple):
    route: str  # "native", "bf16", "library" or "fp8", see block_scaled_matmul.py
    # what the product reads: "codes", "values" in bf16 that were rounded to MXFP8 before, or "raw"
    # bf16, which it rounds itself
    x: str
    block_m: int = 0  # rows of a tile
    block_n: int = 0  # columns of a tile
    block_k: int = 0  # columns of x and w in a step
    group: int = 8  # row tiles visited before the next column tile
    splits: int = 1  # shares of k, added up by another kernel
    num_warps: int = 4
    num_stages: int = 3


# (architecture, route) -> entries: (largest M, tile)
TABLE = {
    ("sm_90", "bf16"): (
        (16, Tile("bf16", "raw", 16, 64, 128, 8, 4, 4, 4)),
        (64, Tile("bf16", "values", 64, 64, 128, 8, 4, 4, 4)),
        (512, Tile("bf16", "values", 128, 128, 64, 8, 1, 8, 4)),
        (None, Tile("bf16", "values", 256, 128, 64, 8, 1, 8, 4)),
    ),
    ("sm_90", "library"): ((None, Tile("library", "values")),),
    # measured for comparison (NOTES.md); taken only if a caller asks for this route
    ("sm_90", "fp8"): (
        (16, Tile("fp8", "codes", 16, 64, 32, 8, 4, 4, 6)),
        (64, Tile("fp8", "codes", 64, 64, 32, 8, 4, 4, 6)),
        (None, Tile("fp8", "codes", 128, 128, 32, 8, 1, 8, 4)),
    ),
    # compiled by us for SM100, but never run on one
    ("sm_100", "native"): (
        (16, Tile("native", "codes", 16, 128, 256, 8, 4, 4, 4)),
        (64, Tile("native", "codes", 64, 128, 256, 8, 4, 4, 4)),
        (512, Tile("native", "codes", 128, 128, 256, 8, 1, 4, 3)),
        (None, Tile("native", "codes", 256, 128, 128, 8, 1, 4, 4)),
    ),
}

# architecture -> entries: (largest M, route)
ROUTES = {"sm_90": ((512, "bf16"), (None, "library")), "sm_100": ((None, "native"),)}


def _for_rows(rows, num_rows):
    """Return the choice of the first entry (limit, choice) whose limit is None or >= num_rows."""
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
        raise ValueError(
            f"architecture: got {architecture}, tiles are tabled for {tabled}"
        )

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

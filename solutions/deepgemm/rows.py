"""rows: how the rows of DeepGEMM's two grouped GEMMs are laid out in memory.

There are two layouts, and the number of tokens T alone decides between them.

masked: each local expert has room for all T tokens; DeepGEMM multiplies the first `counts` of them.
A row's place is known as soon as its rank among its expert's rows is, so one launch routes and
gathers. Scratch grows with T x local experts, so this is for few tokens.

contiguous: the experts' rows lie one after another, each expert's from a multiple of 128 rows on,
up to where `ends` says (DeepGEMM's psum layout). A row's place depends on the number of rows of all
experts before, so gathering is a launch of its own.
"""

from functools import lru_cache
from typing import NamedTuple

from ..common.host.problem import (
    HIDDEN_SIZE,
    INTERMEDIATE_SIZE,
    NUM_EXPERTS,
    NUM_LOCAL_EXPERTS,
    TOP_K,
)
from ..common.triton.rows.permute import max_tiles

# Rows in a tile of contiguous rows. Masked tiles have 64 or 128, so `room` is a multiple of it too:
# the store of a tile must not reach the next expert's rows.
TILE = 128
MOST_MASKED_TOKENS = 1024
MOST_MASKED_BYTES = 2_000_000_000  # of scratch
# Bytes of scratch for a row: h and its scales, and either x, its scales and g, or y, which takes
# over their memory later (scratch.py).
BYTES_PER_ROW = INTERMEDIATE_SIZE + INTERMEDIATE_SIZE // 32
BYTES_PER_ROW += max(
    HIDDEN_SIZE + HIDDEN_SIZE // 32 + 4 * INTERMEDIATE_SIZE, 2 * HIDDEN_SIZE
)


class Rows(NamedTuple):
    masked: bool
    # Rows that there is room for: for each expert where masked, else for all together. Scales of
    # neighbouring blocks of a row are so many elements apart.
    room: int
    total: int  # rows of each operand
    # how DeepGEMM sees the rows: (E_local, room) where masked, else (total,)
    shape: tuple
    # rows of an expert if routing were even; DeepGEMM chooses its tile by this
    expected: int


@lru_cache(maxsize=4096)
def arrange(num_tokens):
    """Return the `Rows` of a call with T tokens, T >= 1."""
    expected = -(-num_tokens * TOP_K // NUM_EXPERTS)
    room = -(-num_tokens // TILE) * TILE
    total = NUM_LOCAL_EXPERTS * room
    if num_tokens <= MOST_MASKED_TOKENS and total * BYTES_PER_ROW <= MOST_MASKED_BYTES:
        return Rows(True, room, total, (NUM_LOCAL_EXPERTS, room), expected)

    total = TILE * max_tiles(num_tokens, TOP_K, NUM_LOCAL_EXPERTS, TILE)
    return Rows(False, total, total, (total,), expected)

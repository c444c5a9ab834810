"""rows: where routed rows lie in the operands of DeepGEMM's two grouped GEMMs, decided by T alone.

masked: each local expert has room for all T tokens, of which its first `counts` are multiplied. A
row's place is known as soon as its rank in its expert is, so one launch routes and gathers. Scratch
grows with T x local experts.

contiguous: experts lie one after another, each from a multiple of 128 rows on, and end where `ends`
says (DeepGEMM's psum layout). A place depends on the numbers of rows of all experts before, so
gathering is a launch of its own.
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

# rows: of contiguous tiles; masked ones have 64 or 128, and a store of one must not reach the next
# expert
TILE = 128
MOST_MASKED_TOKENS = 1024
MOST_MASKED_BYTES = 2_000_000_000  # of scratch
# of h and its scales, and of x, its scales and g, in whose place y lies later (scratch.py)
BYTES_PER_ROW = INTERMEDIATE_SIZE + INTERMEDIATE_SIZE // 32
BYTES_PER_ROW += max(HIDDEN_SIZE + HIDDEN_SIZE // 32 + 4 * INTERMEDIATE_SIZE, 2 * HIDDEN_SIZE)


class Rows(NamedTuple):
    masked: bool
    room: int  # rows of an expert where masked, else of all; neighbours in a column of scales
    total: int  # rows of each operand
    shape: tuple  # of these rows for DeepGEMM: (E_local, room) where masked, else (total,)
    expected: int  # rows of an expert if routing were even: DeepGEMM chooses its tile by it


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

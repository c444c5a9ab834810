"""rank_pairs: of each of a program's pairs, how many earlier pairs have the same expert; shared by `place` kernels."""

import triton
import triton.language as tl


@triton.jit
def rank_pairs(expert_ptr, pair, expert, first_pair, end_pair, PIECE: tl.constexpr):
    """Ranks of the pairs `pair` of the experts `expert` among those from first_pair on; int32, a block like `pair`.

    Pairs first_pair .. end_pair are compared with, PIECE at a time. Where expert is negative the rank means nothing.
    """
    rank = tl.zeros_like(pair)
    for first in range(first_pair, end_pair, PIECE):
        other = first + tl.arange(0, PIECE)
        other_expert = tl.load(expert_ptr + other, mask=other < end_pair, other=-1)
        before = (other_expert[:, None] == expert[None, :]) & (other[:, None] < pair[None, :])
        rank += tl.sum(before.to(tl.int32), 0)  # adds within threads, hardly across lanes
    return rank

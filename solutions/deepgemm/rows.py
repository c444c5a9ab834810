"""rows: where every (token, local expert) pair's row lies in the layout that DeepGEMM's masked products take.

Each expert owns `height` rows, as many as there can be, and the first `count[expert]` of them are in use: so the host
need not know how many. (DeepGEMM's contiguous layout would be read to its last possible row: eight times too many.)
A list of the rows in use spares the other stages the search for them.

Map of the kernels: a program has CHUNK pairs. The first kernel counts its pairs of each expert; the second adds up
what the programs before it counted and numbers its own pairs by a running sum.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

CHUNK = 256
HEIGHT_STEP = 128  # `height` is a multiple of this, the largest tile's rows


class Rows(NamedTuple):
    """Where rows are. Seen as one array, row r of expert e is e * height + r."""

    groups: int
    height: int
    row_of_pair: torch.Tensor  # [T, TOP_K] int32, -1 when the expert is not local
    used_row: torch.Tensor  # [T * TOP_K] int32: rows in use, expert by expert; undefined beyond num_used
    used_token: torch.Tensor  # [T * TOP_K] int32: their tokens
    num_used: torch.Tensor  # [1] int32
    count: torch.Tensor  # [groups] int32


def masked_rows_ref(expert, num_local_experts):
    """Plain statement of `masked_rows`; same arguments and results, on any device."""
    height = _height(expert.shape[0])
    row_of_pair = torch.full_like(expert, -1)
    used_row, used_token = torch.empty_like(expert.view(-1)), torch.empty_like(expert.view(-1))
    count = torch.zeros(num_local_experts, dtype=torch.int32, device=expert.device)
    done = 0
    for e in range(num_local_experts):
        token, slot = (expert == e).nonzero(as_tuple=True)
        row = e * height + torch.arange(len(token), dtype=torch.int32, device=expert.device)
        row_of_pair[token, slot] = row
        used_row[done : done + len(token)], used_token[done : done + len(token)] = row, token.to(torch.int32)
        count[e] = len(token)
        done += len(token)
    return Rows(
        num_local_experts, height, row_of_pair, used_row, used_token, count.sum(0, True, dtype=torch.int32), count
    )


@triton.jit
def _which(expert_ptr, num_pairs, NUM_LOCAL: tl.constexpr, CHUNK: tl.constexpr):
    pair = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    expert = tl.load(expert_ptr + pair, mask=pair < num_pairs, other=-1)
    return pair, expert, (expert[:, None] == tl.arange(0, NUM_LOCAL)[None, :]).to(tl.int32)


@triton.jit(do_not_specialize=["num_pairs"])
def count_rows_kernel(
    expert_ptr,  # [num_pairs] int32
    counted_ptr,  # [programs, NUM_LOCAL] int32, written
    num_pairs,
    NUM_LOCAL: tl.constexpr,
    CHUNK: tl.constexpr,
):
    _, _, is_expert = _which(expert_ptr, num_pairs, NUM_LOCAL, CHUNK)
    tl.store(counted_ptr + tl.program_id(0) * NUM_LOCAL + tl.arange(0, NUM_LOCAL), tl.sum(is_expert, 0))


@triton.jit(do_not_specialize=["num_pairs", "height"])
def place_rows_kernel(
    expert_ptr,  # [num_pairs] int32
    counted_ptr,  # [programs, NUM_LOCAL] int32
    row_of_pair_ptr,  # [num_pairs] int32, written
    used_row_ptr,  # [num_pairs] int32, written
    used_token_ptr,  # [num_pairs] int32, written
    num_used_ptr,  # [1] int32, written
    count_ptr,  # [NUM_LOCAL] int32, written
    num_pairs,
    height,
    TOP_K: tl.constexpr,
    NUM_LOCAL: tl.constexpr,
    CHUNK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    me, programs = tl.program_id(0), tl.num_programs(0)
    local = tl.arange(0, NUM_LOCAL)
    earlier = tl.zeros((NUM_LOCAL,), tl.int32)
    total = tl.zeros((NUM_LOCAL,), tl.int32)
    for first in range(0, programs, AT_ONCE):
        program = (first + tl.arange(0, AT_ONCE))[:, None]
        counted = tl.load(counted_ptr + program * NUM_LOCAL + local[None, :], mask=program < programs, other=0)
        total += tl.sum(counted, 0)
        earlier += tl.sum(tl.where(program < me, counted, 0), 0)
    before = tl.cumsum(total, 0) - total  # used rows of earlier experts
    pair, expert, is_expert = _which(expert_ptr, num_pairs, NUM_LOCAL, CHUNK)
    in_expert = tl.sum(is_expert * (tl.cumsum(is_expert, 0) - 1 + earlier[None, :]), 1)
    used = tl.sum(is_expert * before[None, :], 1) + in_expert
    inside, mine = pair < num_pairs, expert >= 0
    row = expert * height + in_expert
    tl.store(row_of_pair_ptr + pair, tl.where(mine, row, -1), mask=inside)
    tl.store(used_row_ptr + used, row, mask=inside & mine)
    tl.store(used_token_ptr + used, pair // TOP_K, mask=inside & mine)
    if me == 0:
        tl.store(count_ptr + local, total)
        tl.store(num_used_ptr, tl.sum(total, 0))


def masked_rows(expert, num_local_experts):
    """Rows of the masked layout; expert [T, TOP_K] int32, local expert number or -1."""
    num_tokens, top_k = expert.shape
    num_pairs, height = num_tokens * top_k, _height(num_tokens)
    programs = -(-num_pairs // CHUNK)
    row_of_pair = torch.empty_like(expert)
    lists = torch.empty(2, num_pairs, dtype=torch.int32, device=expert.device)
    counts = torch.empty(programs + 2, num_local_experts, dtype=torch.int32, device=expert.device)
    size = {"NUM_LOCAL": num_local_experts, "CHUNK": CHUNK}
    count_rows_kernel[(programs,)](expert, counts, num_pairs, **size, num_warps=4)
    count, num_used = counts[programs], counts[programs + 1, :1]
    place_rows_kernel[(programs,)](
        expert,
        counts,
        row_of_pair,
        lists[0],
        lists[1],
        num_used,
        count,
        num_pairs,
        height,
        TOP_K=top_k,
        **size,
        AT_ONCE=64,
        num_warps=4,
    )
    return Rows(num_local_experts, height, row_of_pair, lists[0], lists[1], num_used, count)


def _height(num_tokens):
    return -(-num_tokens // HEIGHT_STEP) * HEIGHT_STEP

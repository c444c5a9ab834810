"""rows: where every (token, local expert) pair's row lies in the two layouts that DeepGEMM's grouped products take.

Masked: each expert owns `height` rows, the first `count[expert]` of them in use. Contiguous: experts follow each
other, each from a multiple of 128 rows on; `expert_of_row` names a row's expert, -1 beyond the last.
Both are seen as `groups` times `height` rows here; contiguous is one group.

Map of the kernel of the masked layout: one program an expert numbers that expert's pairs in order by a running sum.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .kernels.permute import permute

BLOCK_M = 128  # of the contiguous layout, and what `height` is a multiple of
CHUNK = 1024


class Rows(NamedTuple):
    """Where rows are."""

    groups: int
    height: int
    row_of_pair: torch.Tensor  # [T, TOP_K] int32, -1 when the expert is not local
    token_of_row: torch.Tensor  # [groups * height] int32, -1 without a token; contiguous: undefined beyond used tiles
    tile_expert: torch.Tensor | None  # contiguous only: [tiles] int32, undefined beyond the used ones
    num_tiles: torch.Tensor | None  # contiguous only: [1] int32
    count: torch.Tensor | None  # masked only: [groups] int32


def masked_rows_ref(expert, num_local_experts):
    """Plain statement of `masked_rows`; same arguments and results, on any device."""
    height = _height(expert.shape[0])
    row_of_pair = torch.full_like(expert, -1)
    token_of_row = torch.full((num_local_experts, height), -1, dtype=torch.int32, device=expert.device)
    for e in range(num_local_experts):
        token, slot = (expert == e).nonzero(as_tuple=True)
        place = torch.arange(len(token), dtype=torch.int32, device=expert.device)
        row_of_pair[token, slot] = e * height + place
        token_of_row[e, : len(token)] = token.to(torch.int32)
    count = (token_of_row >= 0).sum(1, dtype=torch.int32)
    return Rows(num_local_experts, height, row_of_pair, token_of_row.view(-1), None, None, count)


@triton.jit(do_not_specialize=["num_pairs", "height"])
def masked_rows_kernel(
    expert_ptr,  # [num_pairs] int32
    row_of_pair_ptr,  # [num_pairs] int32, written
    token_of_row_ptr,  # [E_local * height] int32, written
    count_ptr,  # [E_local] int32, written
    num_pairs,
    height,
    TOP_K: tl.constexpr,
    CHUNK: tl.constexpr,
):
    me = tl.program_id(0)
    count = 0
    for first in range(0, num_pairs, CHUNK):
        pair = first + tl.arange(0, CHUNK)
        expert = tl.load(expert_ptr + pair, mask=pair < num_pairs, other=-1)
        mine = expert == me
        row = me * height + count + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(row_of_pair_ptr + pair, row, mask=mine)
        tl.store(token_of_row_ptr + row, pair // TOP_K, mask=mine)
        if me == 0:
            tl.store(row_of_pair_ptr + pair, -1, mask=(pair < num_pairs) & (expert < 0))
        count += tl.sum(mine.to(tl.int32), 0)
    tl.store(count_ptr + me, count)
    for first in range(0, height, CHUNK):
        place = first + tl.arange(0, CHUNK)
        tl.store(token_of_row_ptr + me * height + place, -1, mask=(place >= count) & (place < height))


def masked_rows(expert, num_local_experts):
    """Rows of the masked layout; expert [T, TOP_K] int32, local expert number or -1."""
    num_tokens, top_k = expert.shape
    height = _height(num_tokens)
    row_of_pair = torch.empty_like(expert)
    token_of_row = torch.empty(num_local_experts * height, dtype=torch.int32, device=expert.device)
    count = torch.empty(num_local_experts, dtype=torch.int32, device=expert.device)
    masked_rows_kernel[(num_local_experts,)](
        expert, row_of_pair, token_of_row, count, num_tokens * top_k, height, TOP_K=top_k, CHUNK=CHUNK, num_warps=4
    )
    return Rows(num_local_experts, height, row_of_pair, token_of_row, None, None, count)


def contiguous_rows(expert, num_local_experts):
    """Rows of the contiguous layout; expert [T, TOP_K] int32, local expert number or -1."""
    found = permute(expert, num_local_experts, BLOCK_M)
    height = found.token_of_row.shape[0]
    return Rows(1, height, found.row_of_pair, found.token_of_row, found.tile_expert, found.num_tiles, None)


def _height(num_tokens):
    return -(-num_tokens // BLOCK_M) * BLOCK_M

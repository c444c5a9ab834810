"""permute: a place for every (token, local expert) pair, sorted by expert, counted on the device.

Each expert's rows start at a multiple of `block_m`, so that a GEMM tile of block_m rows belongs to one
expert. Tokens are not copied: `token_of_row` says where a row's activations are, and gemm1 gathers them.

Map of the kernels: a pair's row is its expert's first row plus its rank among the pairs of that expert, so the
placement is the same in every run. Up to 1024 pairs `place` does it alone: every program counts all pairs by expert,
and ranks its 64 pairs by comparing them with all earlier ones. Beyond, `count` (one program a chunk of 256 pairs)
writes how many pairs of each expert its chunk holds, and `place` (one program a chunk) sums those counts and ranks the
pairs of its own chunk by a running sum. The first program of `place` writes the tiles' experts, and pads.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .rank_pairs import rank_pairs


class Permutation(NamedTuple):
    """Where rows are. Only the first num_tiles[0] entries of tile_expert, and their rows, are defined."""

    row_of_pair: torch.Tensor  # [T, TOP_K] int32: row of the pair, -1 when its expert is not local
    token_of_row: torch.Tensor  # [max_tiles * block_m] int32: token, -1 for a padding row
    tile_expert: torch.Tensor  # [max_tiles] int32: local expert of a tile of block_m rows
    num_tiles: torch.Tensor  # [1] int32


def max_tiles(num_tokens, top_k, num_local_experts, block_m):
    """Upper bound on the tiles of any routing; int. A token meets an expert at most once."""
    pairs = num_tokens * min(top_k, num_local_experts)
    return pairs // block_m + min(num_local_experts, pairs)


def permute_ref(expert, num_local_experts, block_m):
    """Plain statement of `permute`; same arguments and results, padded with -1 where undefined."""
    num_tokens, top_k = expert.shape
    tiles = max_tiles(num_tokens, top_k, num_local_experts, block_m)
    row_of_pair = torch.full_like(expert, -1)
    token_of_row = torch.full((tiles * block_m,), -1, dtype=torch.int32, device=expert.device)
    tile_expert = torch.full((tiles,), -1, dtype=torch.int32, device=expert.device)
    tile = 0
    for e in range(num_local_experts):
        token, slot = (expert == e).nonzero(as_tuple=True)
        row = tile * block_m + torch.arange(len(token), device=expert.device, dtype=torch.int32)
        row_of_pair[token, slot] = row
        token_of_row[row.long()] = token.to(torch.int32)
        used = -(-len(token) // block_m)
        tile_expert[tile : tile + used] = e
        tile += used
    return Permutation(
        row_of_pair, token_of_row, tile_expert, torch.tensor([tile], dtype=torch.int32, device=expert.device)
    )


ALONE = 1024  # pairs up to which `place` needs no `count`
CHUNK = 256  # pairs of a program beyond: of more, the running sum takes longest
OWN = 64  # pairs of a program of a lone `place`, and that they are compared with at a time
LEAST = 256  # pairs that a lone `place` makes room for: a thread each


@triton.jit(do_not_specialize=["num_pairs"])
def count_kernel(
    expert_ptr,  # [num_pairs] int32
    chunk_count_ptr,  # [num_chunks, BINS] int32, written
    num_pairs,
    BINS: tl.constexpr,  # local experts, or the next power of two
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(0)
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    expert = tl.load(expert_ptr + pair, mask=pair < num_pairs, other=-1)
    count = tl.histogram(tl.maximum(expert, 0), BINS, mask=expert >= 0)
    tl.store(chunk_count_ptr + chunk * BINS + tl.arange(0, BINS), count)


# Counts known to be aligned are loaded in a wider layout, which spills registers.
@triton.jit(do_not_specialize=["num_pairs", "num_chunks"], do_not_specialize_on_alignment=["chunk_count_ptr"])
def place_kernel(
    expert_ptr,  # [num_pairs] int32
    chunk_count_ptr,  # [num_chunks, BINS] int32; not read when LONE
    row_of_pair_ptr,  # [num_pairs] int32, written
    token_of_row_ptr,  # [max_tiles * BLOCK_M] int32, written
    tile_expert_ptr,  # [max_tiles] int32, written
    num_tiles_ptr,  # [1] int32, written
    num_pairs,
    num_chunks,
    TOP_K: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    MINE: tl.constexpr,  # pairs of a program
    LONE: tl.constexpr,  # a power of two that holds all pairs, or 0 when counts are given
):
    me = tl.program_id(0)
    bins = tl.arange(0, BINS)
    pair = me * MINE + tl.arange(0, MINE)
    expert = tl.load(expert_ptr + pair, mask=pair < num_pairs, other=-1)

    if LONE > 0:
        every = tl.arange(0, LONE)
        all_experts = tl.load(expert_ptr + every, mask=every < num_pairs, other=-1)
        count = tl.histogram(tl.maximum(all_experts, 0), BINS, mask=all_experts >= 0)
    else:
        count = tl.zeros((BINS,), tl.int32)
        earlier = tl.zeros((BINS,), tl.int32)
        for first in range(0, num_chunks, 64):
            chunk = first + tl.arange(0, 64)[:, None]
            counts = tl.load(chunk_count_ptr + chunk * BINS + bins[None, :], mask=chunk < num_chunks, other=0)
            count += tl.sum(counts, 0)
            earlier += tl.sum(tl.where(chunk < me, counts, 0), 0)
    tiles = (count + BLOCK_M - 1) // BLOCK_M
    last_tile = tl.cumsum(tiles, 0)
    first_row = (last_tile - tiles) * BLOCK_M

    if me == 0:
        tl.store(num_tiles_ptr, tl.sum(tiles, 0))
        pad = tl.arange(0, BLOCK_M)[:, None]
        unused = first_row + count
        tl.store(token_of_row_ptr + unused[None, :] + pad, -1, mask=pad < (last_tile * BLOCK_M - unused)[None, :])
        for nth in range(0, tl.max(tiles, 0)):
            tl.store(tile_expert_ptr + last_tile - tiles + nth, bins, mask=nth < tiles)

    if LONE > 0:
        rank = rank_pairs(expert_ptr, pair, expert, 0, tl.minimum((me + 1) * MINE, num_pairs), MINE)
        row = tl.gather(first_row, tl.maximum(expert, 0), 0) + rank
    else:
        hit = (expert[:, None] == bins[None, :]).to(tl.int32)
        row = tl.sum(hit * (tl.cumsum(hit, 0) - 1 + (first_row + earlier)[None, :]), 1)
    local = expert >= 0
    tl.store(row_of_pair_ptr + pair, tl.where(local, row, -1), mask=pair < num_pairs)
    tl.store(token_of_row_ptr + row, pair // TOP_K, mask=local)


def permute(expert, num_local_experts, block_m):
    """Sort pairs by local expert.

    Args:
        expert: [T, TOP_K] int32, local expert number or -1; T >= 1.
        num_local_experts: E_local.
        block_m: rows of a GEMM tile, a power of two.

    Returns:
        A `Permutation`. Nothing is read back to the host.
    """
    num_tokens, top_k = expert.shape
    num_pairs = num_tokens * top_k
    bins = 1 << (num_local_experts - 1).bit_length()
    lone = num_pairs <= ALONE
    mine = OWN if lone else CHUNK
    num_programs = -(-num_pairs // mine)  # triton.cdiv takes microseconds
    tiles = max_tiles(num_tokens, top_k, num_local_experts, block_m)
    row_of_pair = torch.empty_like(expert)
    sizes = (tiles * block_m, 1, 3, tiles)  # every piece starts at a multiple of 16 bytes
    scratch = torch.empty(sum(sizes), dtype=torch.int32, device=expert.device)
    token_of_row, num_tiles, _, tile_expert = scratch.split_with_sizes(sizes)
    chunk_count = scratch
    if not lone:
        chunk_count = torch.empty(num_programs, bins, dtype=torch.int32, device=expert.device)
        count_kernel[(num_programs,)](expert, chunk_count, num_pairs, BINS=bins, CHUNK=CHUNK, num_warps=4)
    place_kernel[(num_programs,)](
        expert,
        chunk_count,
        row_of_pair,
        token_of_row,
        tile_expert,
        num_tiles,
        num_pairs,
        num_programs,
        TOP_K=top_k,
        BINS=bins,
        BLOCK_M=block_m,
        MINE=mine,
        LONE=max(LEAST, 1 << (num_pairs - 1).bit_length()) if lone else 0,
        num_warps=8,
    )
    return Permutation(row_of_pair, token_of_row, tile_expert, num_tiles)

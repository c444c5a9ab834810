"""permute: a place for every (token, local expert) pair, sorted by expert, counted on the device.

Each expert's rows start at a multiple of `block_m`, so that a GEMM tile of block_m rows belongs to one
expert. Tokens are not copied: `token_of_row` says where a row's activations are, and gemm1 gathers them.

Map of the kernel: one program a local expert. Pass 1 reads all pairs and counts every expert's rows, which
gives this expert its first tile without a word to the other programs. Pass 2 reads the pairs again and
numbers this expert's own in order of token (a running sum), so the placement is the same in every run.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl


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


@triton.jit
def permute_kernel(
    expert_ptr,  # [num_pairs] int32
    row_of_pair_ptr,  # [num_pairs] int32, written
    token_of_row_ptr,  # [max_tiles * BLOCK_M] int32, written
    tile_expert_ptr,  # [max_tiles] int32, written
    num_tiles_ptr,  # [1] int32, written
    num_pairs,
    TOP_K: tl.constexpr,
    E_LOCAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    CHUNK: tl.constexpr,
):
    me = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    bins = tl.arange(0, E_LOCAL)

    count = tl.zeros((E_LOCAL,), tl.int32)
    for start in range(0, num_pairs, CHUNK):
        expert = tl.load(expert_ptr + start + lane, mask=start + lane < num_pairs, other=-1)
        count += tl.histogram(tl.maximum(expert, 0), E_LOCAL, mask=expert >= 0)
    tiles = (count + BLOCK_M - 1) // BLOCK_M
    my_first_tile = tl.sum(tl.where(bins < me, tiles, 0), 0)
    my_tiles = tl.sum(tl.where(bins == me, tiles, 0), 0)
    my_end = my_first_tile * BLOCK_M + tl.sum(tl.where(bins == me, count, 0), 0)
    if me == 0:
        tl.store(num_tiles_ptr, tl.sum(tiles, 0))

    next_row = my_first_tile * BLOCK_M
    for start in range(0, num_pairs, CHUNK):
        pair = start + lane
        expert = tl.load(expert_ptr + pair, mask=pair < num_pairs, other=-1)
        mine = (expert == me).to(tl.int32)
        row = next_row + tl.cumsum(mine, 0) - 1
        tl.store(row_of_pair_ptr + pair, row, mask=mine == 1)
        tl.store(token_of_row_ptr + row, pair // TOP_K, mask=mine == 1)
        next_row += tl.sum(mine, 0)
        if me == 0:
            tl.store(row_of_pair_ptr + pair, -1, mask=(expert < 0) & (pair < num_pairs))

    pad = my_end + tl.arange(0, BLOCK_M)
    tl.store(token_of_row_ptr + pad, -1, mask=pad < (my_first_tile + my_tiles) * BLOCK_M)
    for start in range(0, my_tiles, CHUNK):
        tile = start + lane
        tl.store(tile_expert_ptr + my_first_tile + tile, me, mask=tile < my_tiles)


def permute(expert, num_local_experts, block_m):
    """Sort pairs by local expert.

    Args:
        expert: [T, TOP_K] int32, local expert number or -1; T >= 1.
        num_local_experts: E_local, a power of two.
        block_m: rows of a GEMM tile.

    Returns:
        A `Permutation`. Nothing is read back to the host.
    """
    num_tokens, top_k = expert.shape
    tiles = max_tiles(num_tokens, top_k, num_local_experts, block_m)
    new = lambda n: torch.empty((n,), dtype=torch.int32, device=expert.device)  # noqa: E731
    out = Permutation(torch.empty_like(expert), new(tiles * block_m), new(tiles), new(1))
    chunk = min(4096, max(128, triton.next_power_of_2(num_tokens * top_k)))
    permute_kernel[(num_local_experts,)](
        expert,
        *out,
        num_tokens * top_k,
        TOP_K=top_k,
        E_LOCAL=num_local_experts,
        BLOCK_M=block_m,
        CHUNK=chunk,
        num_warps=4 if chunk < 4096 else 16,
    )
    return out

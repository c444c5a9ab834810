"""sort_pairs: a row for every (token, expert) pair, sorted by expert, and the table of the row tiles that follow.

An expert's rows lie together; with `align` they start at a multiple of it, and the rows between are padding. Tiles of
block_m rows belong to one expert each, whose last tile may be short. Nothing is read back to the host.

Map of the kernels: a pair's row is its expert's first row plus its rank among the pairs of that expert. Up to 1024
pairs `place` does it alone: every program counts all experts, and ranks its 64 pairs by comparing them with all
earlier ones. Beyond, `count` (one program a chunk of 256 pairs) writes how many pairs of each expert its chunk holds,
`scan` (one program 16 experts) makes of that how many earlier chunks hold, and all, and `place` (one program a chunk)
ranks the pairs of its own chunk only. The first program of `place` writes the tile table, and pads.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .rank_pairs import rank_pairs

ALONE = 1024  # pairs up to which `place` needs no `count`; beyond, comparing each with all costs more than two launches
OWN = 64  # pairs of a program of a lone `place`
CHUNK = 256
PIECE = 64  # pairs that are compared with at a time
SCAN_CHUNKS, SCAN_EXPERTS = 256, 16  # that a program of `scan` has at a time, and at all


class Rows(NamedTuple):
    """Where rows are. Only the first num_tiles[0] tiles and the rows of experts are defined."""

    pair_of_row: torch.Tensor  # [num_rows] int32: pair, token * top_k + slot; -1 for a padding row
    row_of_pair: torch.Tensor  # [T * top_k] int32
    tiles: torch.Tensor  # [max_tiles, 4] int32: expert, first row of the tile, end of the expert's rows, 0
    num_tiles: torch.Tensor  # int32, the first element is defined


def max_tiles(num_pairs, num_experts, block_m):
    """Upper bound on the tiles of any routing; int."""
    return num_pairs // block_m + min(num_experts, num_pairs)


def max_rows(num_pairs, num_experts, align):
    """Upper bound on the rows of any routing, padding included; int."""
    return num_pairs + (align - 1) * min(num_experts, num_pairs)


def sort_pairs_ref(expert_ids, num_experts, block_m, align):
    """Plain statement of `sort_pairs`; -1 where undefined."""
    flat = expert_ids.flatten()
    pair_of_row = torch.full((max_rows(len(flat), num_experts, align),), -1, dtype=torch.int32, device=flat.device)
    row_of_pair = torch.full_like(flat, -1)
    tiles, row = [], 0
    for expert in range(num_experts):
        pairs = (flat == expert).nonzero()[:, 0]
        rows = torch.arange(row, row + len(pairs), dtype=torch.int32, device=flat.device)
        pair_of_row[rows.long()] = pairs.to(torch.int32)
        row_of_pair[pairs] = rows
        tiles += [[expert, first, row + len(pairs), 0] for first in range(row, row + len(pairs), block_m)]
        row += -(-len(pairs) // align) * align
    table = torch.full((max_tiles(len(flat), num_experts, block_m), 4), -1, dtype=torch.int32, device=flat.device)
    if tiles:
        table[: len(tiles)] = torch.tensor(tiles, dtype=torch.int32, device=flat.device)
    return Rows(pair_of_row, row_of_pair, table, torch.tensor([len(tiles)], dtype=torch.int32, device=flat.device))


@triton.jit(do_not_specialize=["num_pairs"])
def count_kernel(
    expert_ptr,  # [num_pairs] int32
    chunk_count_ptr,  # [num_chunks, E] int32, written
    num_pairs,
    E: tl.constexpr,
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(0)
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = pair < num_pairs
    expert = tl.load(expert_ptr + pair, mask=inside, other=0)
    tl.store(chunk_count_ptr + chunk * E + tl.arange(0, E), tl.histogram(expert, E, mask=inside))


@triton.jit(do_not_specialize=["num_chunks"])
def scan_kernel(
    chunk_count_ptr,  # [num_chunks, E] int32; read, then how many pairs of the expert earlier chunks hold
    total_ptr,  # [E] int32, written
    num_chunks,
    E: tl.constexpr,
    CHUNKS: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    expert = tl.program_id(0) * EXPERTS + tl.arange(0, EXPERTS)
    total = tl.zeros((EXPERTS,), tl.int32)
    for first in range(0, num_chunks, CHUNKS):
        chunk = first + tl.arange(0, CHUNKS)[:, None]
        at = chunk_count_ptr + chunk * E + expert[None, :]
        counts = tl.load(at, mask=chunk < num_chunks, other=0)
        tl.store(at, total[None, :] + tl.cumsum(counts, 0) - counts, mask=chunk < num_chunks)
        total += tl.sum(counts, 0)
    tl.store(total_ptr + expert, total)


@triton.jit(do_not_specialize=["num_pairs"])
def place_kernel(
    expert_ptr,  # [num_pairs] int32
    earlier_ptr,  # [num_chunks, E] int32, as `scan` leaves it; not read when LONE
    total_ptr,  # [E] int32; not read when LONE
    pair_of_row_ptr,  # [max_rows] int32, written
    row_of_pair_ptr,  # [num_pairs] int32, written
    tile_ptr,  # [max_tiles, 4] int32, written
    num_tiles_ptr,  # one int32, written
    num_pairs,
    E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ALIGN: tl.constexpr,
    OWN: tl.constexpr,  # pairs of a program
    PIECE: tl.constexpr,
    LONE: tl.constexpr,  # the least power of two that holds all pairs, or 0 when `count` and `scan` ran
):
    me = tl.program_id(0)
    bins = tl.arange(0, E)
    pair = me * OWN + tl.arange(0, OWN)
    own = tl.load(expert_ptr + pair, mask=pair < num_pairs, other=-1)

    if LONE > 0:
        every = tl.arange(0, LONE)
        inside = every < num_pairs
        count = tl.histogram(tl.load(expert_ptr + every, mask=inside, other=0), E, mask=inside)
        earlier = tl.zeros((E,), tl.int32)
        first_pair = 0
    else:
        count = tl.load(total_ptr + bins)
        earlier = tl.load(earlier_ptr + me * E + bins)
        first_pair = me * OWN

    rank = rank_pairs(expert_ptr, pair, own, first_pair, tl.minimum((me + 1) * OWN, num_pairs), PIECE)
    aligned = (count + ALIGN - 1) // ALIGN * ALIGN
    first_row = tl.cumsum(aligned, 0) - aligned
    row = tl.gather(first_row + earlier, tl.maximum(own, 0), 0) + rank
    real = own >= 0
    tl.store(row_of_pair_ptr + pair, row, mask=real)
    tl.store(pair_of_row_ptr + row, pair, mask=real)

    if me == 0:
        tiles = (count + BLOCK_M - 1) // BLOCK_M
        first_tile = tl.cumsum(tiles, 0) - tiles
        tl.store(num_tiles_ptr, tl.sum(tiles, 0))
        for nth in range(0, tl.max(tiles, 0)):
            entry = tile_ptr + 4 * (first_tile + nth)
            used = nth < tiles
            tl.store(entry, bins, mask=used)
            tl.store(entry + 1, first_row + nth * BLOCK_M, mask=used)
            tl.store(entry + 2, first_row + count, mask=used)
        if ALIGN > 1:
            unused = first_row + count
            pad = tl.arange(0, ALIGN)[:, None]
            tl.store(pair_of_row_ptr + unused[None, :] + pad, -1, mask=pad < (aligned - count)[None, :])


def sort_pairs(expert_ids, num_experts, block_m, align):
    """Sort pairs by expert.

    Args:
        expert_ids: [T, top_k] int32, 0 <= id < num_experts, a token's all different; T >= 1.
        num_experts: a power of two, 8 or more.
        block_m: rows of a GEMM tile, a power of two.
        align: 1, or block_m to let every expert's rows start at a tile boundary.

    Returns:
        `Rows`.
    """
    num_pairs = expert_ids.numel()
    tiles = max_tiles(num_pairs, num_experts, block_m)
    lone = num_pairs <= ALONE
    own = OWN if lone else CHUNK
    num_programs = -(-num_pairs // own)  # triton.cdiv takes microseconds
    rows = max_rows(num_pairs, num_experts, align)
    # every piece starts at a multiple of 16 bytes
    counts = (0, 0) if lone else (num_programs * num_experts, num_experts)
    sizes = (4 * tiles, 4, -(-num_pairs // 4) * 4, *counts, -(-rows // 4) * 4)
    scratch = torch.empty(sum(sizes), dtype=torch.int32, device=expert_ids.device)
    table, num_tiles, row_of_pair, chunk_count, total, pair_of_row = scratch.split_with_sizes(sizes)
    if lone:
        chunk_count = total = scratch
    else:
        count_kernel[(num_programs,)](expert_ids, chunk_count, num_pairs, E=num_experts, CHUNK=CHUNK, num_warps=4)
        experts = min(num_experts, SCAN_EXPERTS)
        scan_kernel[(num_experts // experts,)](
            chunk_count, total, num_programs, E=num_experts, CHUNKS=SCAN_CHUNKS, EXPERTS=experts, num_warps=4
        )
    place_kernel[(num_programs,)](
        expert_ids,
        chunk_count,
        total,
        pair_of_row,
        row_of_pair,
        table,
        num_tiles,
        num_pairs,
        E=num_experts,
        BLOCK_M=block_m,
        ALIGN=align,
        OWN=own,
        PIECE=PIECE,
        LONE=1 << (num_pairs - 1).bit_length() if lone else 0,
        num_warps=8,
    )
    return Rows(pair_of_row, row_of_pair, table, num_tiles)

"""permute: sort the (token, expert) pairs of this rank by expert, and cut them into GEMM tiles.

A pair is a token and one of the TOP_K experts that it is routed to; its number is token * TOP_K +
slot. The experts `first_expert` to `first_expert` + num_local_experts - 1 are on this rank (local).
Each pair of a local expert gets a row, other pairs get none. An expert's rows lie together, in the
order of its pairs (a stable counting sort), so the result is the same in every run.

A tile is up to block_m rows of one expert, which the GEMMs multiply at once. Padded, an expert's
rows start at a multiple of block_m, and tile m is the rows from m * block_m on. Otherwise no row is
padding, and `tile_rows` says where a tile starts. Tokens are not copied: the GEMMs find them by the
pair of a row. Nothing is read back to the host.

A pair's row is its expert's first row plus the number of earlier pairs of that expert. Two kernels
count these pairs, in groups of up to 1024 pairs:

- `count` has a program for each group, which writes the group's histogram of experts. Where there
  is a single group, the kernel is not launched.
- `place` has a program for each 256 pairs, or 64 where there is a single group. The program adds up
  the groups' histograms, makes one of the pairs before its own in its group, and compares its own
  pairs with each other. So its work is groups x experts + 256 x 256, never pairs x experts. The
  programs share the writing of tiles and padding.

`place` is launched after `count`, in stream order; neither has barriers of its own.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

# pairs in a histogram: making it takes about as long as comparing 256 pairs with each other
GROUP = 1024
MIN_GROUP = 256  # smallest size of a single group: a pair for each thread
PAIRS = 256  # pairs of a program of `place`
PAIRS_SINGLE = 64  # the same where there is a single group
# (group, expert) counts that a program loads at a time, or (padding row, expert) stores
MAX_ELEMENTS = 4096


class Permutation(NamedTuple):
    """The rows and tiles of a call. Only the first num_tiles[0] and num_rows[0] are defined."""

    # [T, TOP_K] int32: row of the pair, -1 when its expert is not local
    row_of_pair: torch.Tensor
    # [max_rows] int32: token * TOP_K + slot; `padding`, as passed to permute, in a padding row
    pair_of_row: torch.Tensor
    # [max_tiles] int32: local expert of a tile of block_m rows
    tile_expert: torch.Tensor
    num_tiles: torch.Tensor  # [1] int32
    num_rows: torch.Tensor  # [1] int32, with the padding
    # [max_tiles, 2] int32: a tile's first row, and the end of its expert's rows; None where padded
    tile_rows: torch.Tensor | None


def max_tiles(num_tokens, top_k, num_local_experts, block_m):
    """Return the most tiles that any routing of num_tokens tokens can make."""
    pairs = num_tokens * top_k
    return pairs // block_m + min(num_local_experts, pairs)


@triton.jit
def local_number(expert, first_expert, LOCAL: tl.constexpr):
    """Return the number of an expert on this rank, -1 where it is not local."""
    return tl.where(
        (expert >= first_expert) & (expert < first_expert + LOCAL),
        expert - first_expert,
        -1,
    )


@triton.jit
def count_local(expert, here, BINS: tl.constexpr):
    """Return how often each local number is in `expert` where `here` holds, [BINS] int32."""
    return tl.histogram(tl.maximum(expert, 0), BINS, mask=here & (expert >= 0))


@triton.jit(do_not_specialize=["num_pairs", "first_expert"])
def count_kernel(
    expert_ptr,  # [num_pairs] int32
    group_count_ptr,  # [num_groups, BINS] int32, written
    num_pairs,
    first_expert,
    LOCAL: tl.constexpr,
    BINS: tl.constexpr,  # LOCAL, or the next power of two
    GROUP: tl.constexpr,
):
    group = tl.program_id(0)
    pair = group * GROUP + tl.arange(0, GROUP)
    inside = pair < num_pairs
    expert = local_number(
        tl.load(expert_ptr + pair, mask=inside, other=-1), first_expert, LOCAL
    )
    tl.store(
        group_count_ptr + group * BINS + tl.arange(0, BINS),
        count_local(expert, inside, BINS),
    )


# If Triton knew that group_count_ptr is aligned, it would load the counts in a wider layout, which
# spills registers.
@triton.jit(
    do_not_specialize=["num_pairs", "num_groups", "padding", "first_expert"],
    do_not_specialize_on_alignment=["group_count_ptr"],
)
def place_kernel(
    expert_ptr,  # [num_pairs] int32
    group_count_ptr,  # [num_groups, BINS] int32; not read when SINGLE_GROUP
    row_of_pair_ptr,  # [num_pairs] int32, written
    pair_of_row_ptr,  # [max_rows] int32, written
    tile_expert_ptr,  # [max_tiles] int32, written
    tile_rows_ptr,  # [max_tiles, 2] int32, written unless PADDED
    num_tiles_ptr,  # [1] int32, written
    num_rows_ptr,  # [1] int32, written
    num_pairs,
    num_groups,
    padding,
    first_expert,
    LOCAL: tl.constexpr,
    BINS: tl.constexpr,  # LOCAL, or the next power of two
    BLOCK_M: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    PAIRS: tl.constexpr,  # of a program, a divisor of GROUP
    SINGLE_GROUP: tl.constexpr,  # one group holds all pairs
    GROUPS: tl.constexpr,  # histograms added up at a time
    PAD: tl.constexpr,  # padding rows of each expert written at a time
):
    CHUNK: tl.constexpr = 64  # pairs that are compared with at a time
    me = tl.program_id(0)
    bins = tl.arange(0, BINS)

    # this program's pairs
    first_pair = me * PAIRS
    pair = first_pair + tl.arange(0, PAIRS)
    named = tl.load(expert_ptr + pair, mask=pair < num_pairs, other=-1)
    expert = local_number(named, first_expert, LOCAL)

    # each expert's pairs in all groups (count), and those before this program's (earlier)
    my_group = first_pair // GROUP
    group_pair = my_group * GROUP + tl.arange(0, GROUP)
    group_named = tl.load(
        expert_ptr + group_pair, mask=group_pair < num_pairs, other=-1
    )
    group_expert = local_number(group_named, first_expert, LOCAL)
    earlier = count_local(group_expert, group_pair < first_pair, BINS)
    if SINGLE_GROUP:
        count = count_local(group_expert, group_pair < num_pairs, BINS)
    else:
        count = tl.zeros((BINS,), tl.int32)
        for first in range(0, num_groups, GROUPS):
            group = first + tl.arange(0, GROUPS)[:, None]
            counts = tl.load(
                group_count_ptr + group * BINS + bins[None, :],
                mask=group < num_groups,
                other=0,
            )
            count += tl.sum(counts, 0)
            earlier += tl.sum(tl.where(group < my_group, counts, 0), 0)

    # each expert's tiles and rows
    tiles = (count + BLOCK_M - 1) // BLOCK_M
    first_tile = tl.cumsum(tiles, 0) - tiles
    if PADDED:
        room = tiles * BLOCK_M
        first_row = first_tile * BLOCK_M
    else:
        room = count
        first_row = tl.cumsum(count, 0) - count

    # the pairs' rows; static_range, because a loop that is not unrolled spills 8 bytes of registers
    # with 32 experts
    row = tl.gather(first_row + earlier, tl.maximum(expert, 0), 0)
    for chunk in tl.static_range(0, PAIRS, CHUNK):
        other = first_pair + chunk + tl.arange(0, CHUNK)
        other_named = tl.load(expert_ptr + other, mask=other < num_pairs, other=-1)
        before = (other_named[:, None] == named[None, :]) & (
            other[:, None] < pair[None, :]
        )
        # a reduction within threads, hardly across lanes
        row += tl.sum(before.to(tl.int32), 0)

    local = expert >= 0
    tl.store(row_of_pair_ptr + pair, tl.where(local, row, -1), mask=pair < num_pairs)
    tl.store(pair_of_row_ptr + row, pair, mask=local)

    # the nth tile of each expert that has one, then padding and totals
    for nth in range(me, tl.max(tiles, 0), tl.num_programs(0)):
        used = nth < tiles
        tl.store(tile_expert_ptr + first_tile + nth, bins, mask=used)
        if not PADDED:
            tl.store(
                tile_rows_ptr + 2 * (first_tile + nth),
                first_row + nth * BLOCK_M,
                mask=used,
            )
            tl.store(
                tile_rows_ptr + 2 * (first_tile + nth) + 1, first_row + count, mask=used
            )
    if PADDED:
        for first in range(me * PAD, BLOCK_M, tl.num_programs(0) * PAD):
            pad = first + tl.arange(0, PAD)[:, None]
            unused = (first_row + count)[None, :] + pad
            tl.store(
                pair_of_row_ptr + unused, padding, mask=pad < (room - count)[None, :]
            )
    if me == 0:
        tl.store(num_tiles_ptr, tl.sum(tiles, 0))
        tl.store(num_rows_ptr, tl.sum(room, 0))


def permute(
    expert, num_local_experts, block_m, padded=True, padding=-1, first_expert=0
):
    """Return the pairs sorted by local expert, as rows and tiles.

    Args:
        expert: [T, TOP_K] int32, T >= 1: each pair's expert. Any number that is not a local
            expert's is allowed.
        num_local_experts: number of experts on this rank.
        block_m: rows of a GEMM tile, a power of two.
        padded: whether every expert's rows start at a multiple of block_m.
        padding: what pair_of_row holds for a padding row.
        first_expert: number of the first local expert, at least 0.

    Returns:
        A `Permutation`.
    """
    num_tokens, top_k = expert.shape
    num_pairs = num_tokens * top_k
    bins = 1 << (num_local_experts - 1).bit_length()
    tiles = max_tiles(num_tokens, top_k, num_local_experts, block_m)
    single = num_pairs <= GROUP
    # not triton.cdiv, whose call takes microseconds
    num_groups = -(-num_pairs // GROUP)

    row_of_pair = torch.empty_like(expert)
    sizes = (
        tiles * block_m if padded else num_pairs,
        tiles,
        1,
        1,
        0 if padded else 2 * tiles,
        0 if single else num_groups * bins,
    )
    scratch, parts = _allocate(sizes, expert.device)
    pair_of_row, tile_expert, num_tiles, num_rows, tile_rows, group_count = parts

    if single:
        group = max(MIN_GROUP, 1 << (num_pairs - 1).bit_length())
        pairs = PAIRS_SINGLE
        group_count = scratch  # not read
    else:
        group = GROUP
        pairs = PAIRS
        count_kernel[(num_groups,)](
            expert,
            group_count,
            num_pairs,
            first_expert,
            LOCAL=num_local_experts,
            BINS=bins,
            GROUP=GROUP,
            num_warps=4,
        )

    at_a_time = max(1, MAX_ELEMENTS // bins)
    programs = -(-num_pairs // pairs)
    place_kernel[(programs,)](
        expert,
        group_count,
        row_of_pair,
        pair_of_row,
        tile_expert,
        scratch if padded else tile_rows,  # not written where padded
        num_tiles,
        num_rows,
        num_pairs,
        num_groups,
        padding,
        first_expert,
        LOCAL=num_local_experts,
        BINS=bins,
        BLOCK_M=block_m,
        PADDED=padded,
        GROUP=group,
        PAIRS=pairs,
        SINGLE_GROUP=single,
        GROUPS=at_a_time,
        PAD=min(block_m, at_a_time),
        num_warps=8,
    )
    tile_rows = None if padded else tile_rows.view(-1, 2)
    return Permutation(
        row_of_pair, pair_of_row, tile_expert, num_tiles, num_rows, tile_rows
    )


def _allocate(sizes, device):
    """Return int32 memory, and its parts of these sizes, each at a multiple of 16 bytes."""
    with_gaps = []
    for size in sizes:
        with_gaps += [size, -size % 4]

    memory = torch.empty(sum(with_gaps), dtype=torch.int32, device=device)
    return memory, memory.split_with_sizes(with_gaps)[::2]


def permute_ref(
    expert, num_local_experts, block_m, padded=True, padding=-1, first_expert=0
):
    """Compute `permute` in plain torch, for tests, on any device.

    What `permute` leaves undefined is `padding` or -1.
    """
    num_tokens, top_k = expert.shape
    tiles = max_tiles(num_tokens, top_k, num_local_experts, block_m)
    max_rows = tiles * block_m if padded else expert.numel()
    like = dict(dtype=torch.int32, device=expert.device)
    row_of_pair = torch.full_like(expert, -1).flatten()
    pair_of_row = torch.full((max_rows,), padding, **like)
    tile_expert = torch.full((tiles,), -1, **like)
    tile_rows = torch.full((tiles, 2), -1, **like)

    tile = 0
    row = 0
    for local_expert in range(num_local_experts):
        is_here = expert.flatten() == first_expert + local_expert
        pair = is_here.nonzero().flatten()
        end = row + len(pair)
        row_of_pair[pair] = torch.arange(row, end, **like)
        pair_of_row[row:end] = pair.to(torch.int32)

        for first in range(row, end, block_m):
            tile_expert[tile] = local_expert
            tile_rows[tile] = torch.tensor([first, end])
            tile += 1
        row = tile * block_m if padded else end

    return Permutation(
        row_of_pair.view_as(expert),
        pair_of_row,
        tile_expert,
        torch.tensor([tile], **like),
        torch.tensor([row], **like),
        None if padded else tile_rows,
    )


def tiles_ref(permutation, block_m):
    """Yield (local expert, row numbers without padding) of each used tile.

    The references of the GEMMs in plain torch loop over it.
    """
    num_tiles = int(permutation.num_tiles)
    experts = permutation.tile_expert[:num_tiles].tolist()
    for tile, expert in enumerate(experts):
        first = tile * block_m
        end = first + block_m
        if permutation.tile_rows is not None:
            first, end = permutation.tile_rows[tile].tolist()

        end = min(first + block_m, end)
        rows = torch.arange(first, end, device=permutation.pair_of_row.device)
        has_pair = permutation.pair_of_row[rows] >= 0
        yield expert, rows[has_pair]

"""gather: choose each token's experts and copy its FP8 values and scales to where DeepGEMM multiplies them.

A row's rank within its expert comes from an atomic counter, so the order of an expert's rows differs between runs, and
no kernel has to sort pairs first, as the shared permute does. The layer's result does not differ: a row of a GEMM
depends on no other, and `combine` adds a token's rows in routing's order.

Map of the kernels, one warp a token in each:
    masked       route_gather   route, count, copy the token to row expert * room + rank
    contiguous   route_count    route, count, keep the rank
                 gather         first rows of the experts from the counts, copy the token
Scales of x lie as DeepGEMM loads them by TMA: neighbouring rows are neighbours, blocks of 128 columns `room` apart.
"""

import torch
import triton
import triton.language as tl

from .common.host import problem
from .common.triton.pdl import pdl_wait
from .common.triton.route import SLOTS, TOP_K, route_kernel
from .pairs import pointers
from .prepare import prepare
from .rows import TILE

# of the definition, for the kernels
E_LOCAL = tl.constexpr(problem.NUM_LOCAL_EXPERTS)
BINS = tl.constexpr(triton.next_power_of_2(problem.NUM_LOCAL_EXPERTS))
H = tl.constexpr(problem.HIDDEN_SIZE)
WIDTH = tl.constexpr(triton.next_power_of_2(problem.HIDDEN_SIZE))
BLOCKS = tl.constexpr(triton.next_power_of_2(problem.HIDDEN_SIZE // 128))
ALIGNMENT = tl.constexpr(TILE)  # rows


@triton.jit
def route_token(
    logits_ptr,
    bias_ptr,
    expert_ptr,
    weight_ptr,
    count_ptr,  # [E_LOCAL] int32, added to
    local_expert_offset,
    routed_scaling_factor,
):
    """Route this program's token and count it; its local experts, -1 elsewhere, and its ranks in them, both [SLOTS]."""
    route_kernel(logits_ptr, bias_ptr, expert_ptr, weight_ptr, local_expert_offset, routed_scaling_factor, E_LOCAL)
    tl.debug_barrier()  # the experts were stored by other threads of this program
    slot = tl.arange(0, SLOTS)
    expert = tl.load(expert_ptr + tl.program_id(0) * TOP_K + slot, mask=slot < TOP_K, other=-1)
    rank = tl.atomic_add(count_ptr + tl.maximum(expert, 0), 1, mask=expert >= 0, sem="relaxed")
    return expert, rank


@triton.jit
def load_token(x_ptr, x_scale_ptr, num_tokens):
    """This program's token: [WIDTH] fp8, and its scales [BLOCKS]."""
    token = tl.program_id(0)
    column, block = tl.arange(0, WIDTH), tl.arange(0, BLOCKS)
    values = tl.load(x_ptr + token.to(tl.int64) * H + column, mask=column < H)
    return values, tl.load(x_scale_ptr + block * num_tokens + token, mask=block < H // 128)


@triton.jit
def store_token(
    values,
    scales,
    out_ptr,
    out_scale_ptr,
    row_ptr,  # [T, TOP_K] int32; those of this token were stored by other threads of this program
    room,
):
    """Write what `load_token` read to every row of this program's token."""
    tl.debug_barrier()
    column, block = tl.arange(0, WIDTH), tl.arange(0, BLOCKS)
    for k in tl.static_range(TOP_K):
        row = tl.load(row_ptr + tl.program_id(0) * TOP_K + k)
        if row >= 0:
            tl.store(out_ptr + row.to(tl.int64) * H + column, values, mask=column < H)
            first = (row // room * (H // 128)).to(tl.int64) * room + row % room
            tl.store(out_scale_ptr + first + block * room, scales, mask=block < H // 128)


@triton.jit(do_not_specialize=["local_expert_offset", "routed_scaling_factor", "num_tokens", "room"])
def route_gather_kernel(
    logits_ptr,  # [T, E] fp32; bf16 with renorm routing
    bias_ptr,  # [E] bf16; not read with renorm routing
    count_ptr,  # [E_LOCAL] int32, zeros before
    pair_ptr,  # [4, T, TOP_K] int32, all but the ranks written
    x_ptr,  # [T, H] fp8
    x_scale_ptr,  # [H / 128, T] fp32
    out_ptr,  # [E_LOCAL * room, H] fp8, written
    out_scale_ptr,  # [E_LOCAL, H / 128, room] fp32, written
    local_expert_offset,
    routed_scaling_factor,
    num_tokens,
    room,
    PDL: tl.constexpr,
):
    pdl_wait(PDL)
    expert_ptr, weight_ptr, row_ptr, _ = pointers(pair_ptr, num_tokens * TOP_K)
    values, scales = load_token(x_ptr, x_scale_ptr, num_tokens)  # arrives while routing
    expert, rank = route_token(
        logits_ptr, bias_ptr, expert_ptr, weight_ptr, count_ptr, local_expert_offset, routed_scaling_factor
    )
    slot = tl.arange(0, SLOTS)
    row = tl.where(expert >= 0, expert * room + rank, -1)
    tl.store(row_ptr + tl.program_id(0) * TOP_K + slot, row, mask=slot < TOP_K)
    store_token(values, scales, out_ptr, out_scale_ptr, row_ptr, room)


@triton.jit(do_not_specialize=["local_expert_offset", "routed_scaling_factor"])
def route_count_kernel(
    logits_ptr,  # as above
    bias_ptr,
    count_ptr,
    pair_ptr,  # [4, T, TOP_K] int32, all but the rows written
    local_expert_offset,
    routed_scaling_factor,
    PDL: tl.constexpr,
):
    pdl_wait(PDL)
    expert_ptr, weight_ptr, _, rank_ptr = pointers(pair_ptr, tl.num_programs(0) * TOP_K)
    expert, rank = route_token(
        logits_ptr, bias_ptr, expert_ptr, weight_ptr, count_ptr, local_expert_offset, routed_scaling_factor
    )
    slot = tl.arange(0, SLOTS)
    tl.store(rank_ptr + tl.program_id(0) * TOP_K + slot, tl.where(expert >= 0, rank, -1), mask=slot < TOP_K)


@triton.jit(do_not_specialize=["num_tokens", "room"])
def gather_kernel(
    count_ptr,  # [E_LOCAL] int32
    end_ptr,  # [E_LOCAL] int32, written
    pair_ptr,  # [4, T, TOP_K] int32: experts and ranks; rows are written
    x_ptr,  # [T, H] fp8
    x_scale_ptr,  # [H / 128, T] fp32
    out_ptr,  # [room, H] fp8, written
    out_scale_ptr,  # [H / 128, room] fp32, written
    num_tokens,
    room,
    PDL: tl.constexpr,
):
    pdl_wait(PDL)
    expert_ptr, _, row_ptr, rank_ptr = pointers(pair_ptr, num_tokens * TOP_K)
    token = tl.program_id(0)
    local = tl.arange(0, BINS)
    count = tl.load(count_ptr + local, mask=local < E_LOCAL, other=0)
    padded = (count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    first = tl.cumsum(padded, 0) - padded
    if token == 0:
        tl.store(end_ptr + local, first + count, mask=local < E_LOCAL)
    slot = tl.arange(0, SLOTS)
    expert = tl.load(expert_ptr + token * TOP_K + slot, mask=slot < TOP_K, other=-1)
    rank = tl.load(rank_ptr + token * TOP_K + slot, mask=slot < TOP_K, other=0)
    row = tl.where(expert >= 0, tl.gather(first, tl.maximum(expert, 0), 0) + rank, -1)
    tl.store(row_ptr + token * TOP_K + slot, row, mask=slot < TOP_K)
    if tl.max(row, 0) >= 0:
        values, scales = load_token(x_ptr, x_scale_ptr, num_tokens)
        store_token(values, scales, out_ptr, out_scale_ptr, row_ptr, room)


def prepare_gather(rows, num_tokens, local_expert_offset, routed_scaling_factor, device):
    """A function that routes all tokens and copies them into the first GEMM's operand.

    start(stream, logits, bias, x, x_scale, counts, ends, pairs, out, out_scale)
        logits, bias: as `route` takes them; bias is any tensor with renorm routing.
        x: [T, H] float8_e4m3fn; x_scale: [H / 128, T] float32.
        counts: [E_local] int32 zeros; afterwards the experts' numbers of rows.
        ends: [E_local] int32; afterwards where each expert's rows end, unless masked.
        pairs: [4, T, TOP_K] int32 (pairs.py); experts, weights and rows are written.
        out, out_scale: operand of depth H (grouped_gemm.py); rows that belong to no pair stay undefined.

    Args:
        rows: `arrange`'s, for T.
        local_expert_offset, routed_scaling_factor: as `route` takes them.
    """
    pdl = device.type != "cpu"
    grid, routing = (num_tokens, 1, 1), (local_expert_offset, float(routed_scaling_factor))  # an int is another kernel
    options = dict(PDL=pdl, num_warps=1, launch_pdl=pdl)
    if rows.masked:
        numbers = (*routing, num_tokens, rows.room)
        route_gather = prepare(route_gather_kernel, device, grid, numbers, **options)

        def start(stream, logits, bias, x, x_scale, counts, ends, pairs, out, out_scale):
            route_gather(stream, logits, bias, counts, pairs, x, x_scale, out, out_scale)

    else:
        route_count = prepare(route_count_kernel, device, grid, routing, **options)
        gather = prepare(gather_kernel, device, grid, (num_tokens, rows.room), **options)

        def start(stream, logits, bias, x, x_scale, counts, ends, pairs, out, out_scale):
            route_count(stream, logits, bias, counts, pairs)
            gather(stream, counts, ends, pairs, x, x_scale, out, out_scale)

    return start


def gather_ref(x, x_scale, expert, num_local_experts, rows):
    """Plain statement of both gathers, but for the order of an expert's rows, which is here that of its tokens.

    Returns out [total, H]; out_scale [total / room, H / 128, room]; row_of_pair [T, TOP_K], -1 for an expert of another
    rank; layout [E_local]: rows of each expert where masked, else where they end. NaN and -1 where undefined.
    """
    hidden = x.shape[1]
    like = dict(device=x.device)
    out = torch.full((rows.total, hidden), torch.nan, **like).to(x.dtype)
    out_scale = torch.full((rows.total // rows.room, hidden // 128, rows.room), torch.nan, **like)
    row_of_pair = torch.full_like(expert, -1)
    counts, ends = (torch.zeros(num_local_experts, dtype=torch.int32, **like) for _ in range(2))
    first = 0
    for e in range(num_local_experts):
        token, slot = (expert == e).nonzero(as_tuple=True)
        first = e * rows.room if rows.masked else first
        row = first + torch.arange(len(token), **like)
        row_of_pair[token, slot] = row.to(torch.int32)
        out[row] = x[token]
        out_scale[row // rows.room, :, row % rows.room] = x_scale[:, token].t()
        counts[e], ends[e] = len(token), first + len(token)
        first += -(-len(token) // TILE) * TILE
    return out, out_scale, row_of_pair, counts if rows.masked else ends

"""gather: the first stage: choose each token's experts, and copy it to its rows in the operand x.

A row's rank among its expert's rows comes from an atomic counter, so no kernel has to sort pairs
first, as the shared permute does. The order of an expert's rows differs between runs, but not the
layer's result: a row of a GEMM depends on no other, and `combine` adds a token's rows in the order
of its routing.

Which kernels run depends on how rows are laid out; rows.py explains masked, contiguous and `room`.
Each kernel has one warp for a token:
    masked       route_gather   route, count, copy the token to row expert * room + rank
    contiguous   route_count    route, count, store the rank
                 gather         compute the experts' first rows from the counts, copy the token

What some threads of a warp store, experts or rows, others load: a tl.debug_barrier stands between.
Every kernel waits for the preceding one first (pdl_wait).

The scales of x are stored as DeepGEMM loads them by TMA: those of neighbouring rows are adjacent,
those of neighbouring blocks of 128 columns `room` apart.
"""

import triton
import triton.language as tl

from ..common.host import interface, problem
from ..common.triton.pdl import pdl_wait
from ..common.triton.rows.route import SLOTS, TOP_K, route_kernel
from .pairs import pointers
from .rows import TILE

# the definition's sizes, as constants that kernels may read
E_LOCAL = tl.constexpr(problem.NUM_LOCAL_EXPERTS)
BINS = tl.constexpr(triton.next_power_of_2(max(problem.NUM_LOCAL_EXPERTS, 2)))
H = tl.constexpr(problem.HIDDEN_SIZE)
WIDTH = tl.constexpr(triton.next_power_of_2(problem.HIDDEN_SIZE))
BLOCKS = tl.constexpr(triton.next_power_of_2(problem.HIDDEN_SIZE // 128))
ALIGNMENT = tl.constexpr(TILE)  # rows
ROUTED = tl.constexpr(interface.ROUTED)
ROW_MAJOR = tl.constexpr(interface.SCALES_ROW_MAJOR)


@triton.jit
def route_token(
    logits_ptr,  # [T, E] fp32 or bf16; where ROUTED, ids [T, TOP_K] int32
    bias_ptr,  # [E] bf16; where ROUTED, weights [T, TOP_K] fp32
    pair_ptr,  # [4, T, TOP_K] int32 (pairs.py); experts and weights are written
    count_ptr,  # [E_LOCAL] int32, added to
    local_expert_offset,
    routed_scaling_factor,
    num_tokens,
):
    """Choose the experts of this program's token, and count the token for each local one.

    Return two tensors [SLOTS] int32: the local experts, -1 for those of other ranks, and the
    token's rank among each one's rows.
    """
    expert_ptr, weight_ptr, _, _ = pointers(pair_ptr, num_tokens * TOP_K)
    slot = tl.arange(0, SLOTS)
    at = tl.program_id(0) * TOP_K + slot
    if ROUTED:
        expert_id = tl.load(logits_ptr + at, mask=slot < TOP_K, other=-1)
        local = (expert_id >= local_expert_offset) & (
            expert_id < local_expert_offset + E_LOCAL
        )
        expert = tl.where(local, expert_id - local_expert_offset, -1)
        tl.store(expert_ptr + at, expert, mask=slot < TOP_K)
        tl.store(
            weight_ptr + at,
            tl.load(bias_ptr + at, mask=slot < TOP_K),
            mask=slot < TOP_K,
        )
        # A caller may name an expert twice for a token. Both slots share a row, as there is room
        # for each token only once.
        same = (expert[:, None] == expert[None, :]) & (slot[:, None] <= slot[None, :])
        first = tl.min(tl.where(same, slot[:, None], SLOTS), 0)
        counted = (expert >= 0) & (first == slot)
        rank = tl.atomic_add(
            count_ptr + tl.maximum(expert, 0), 1, mask=counted, sem="relaxed"
        )
        rank = tl.gather(rank, first, 0)
    else:
        route_kernel(
            logits_ptr,
            bias_ptr,
            expert_ptr,
            weight_ptr,
            local_expert_offset,
            routed_scaling_factor,
            E_LOCAL,
        )
        tl.debug_barrier()  # the experts were stored by other threads of this program
        expert = tl.load(expert_ptr + at, mask=slot < TOP_K, other=-1)
        rank = tl.atomic_add(
            count_ptr + tl.maximum(expert, 0), 1, mask=expert >= 0, sem="relaxed"
        )
    return expert, rank


@triton.jit
def load_token(x_ptr, x_scale_ptr, num_tokens):
    """Return the values of this program's token, [WIDTH] fp8, and its scales, [BLOCKS] fp32."""
    token = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    block = tl.arange(0, BLOCKS)
    values = tl.load(x_ptr + token.to(tl.int64) * H + column, mask=column < H)
    scale = token * (H // 128) + block if ROW_MAJOR else block * num_tokens + token
    return values, tl.load(x_scale_ptr + scale, mask=block < H // 128)


@triton.jit
def store_token(
    values,
    scales,
    out_ptr,
    out_scale_ptr,
    row_ptr,  # [T, TOP_K] int32; this token's rows were stored by other threads of this program
    room,
):
    """Write this program's token, as `load_token` returned it, to each of its rows."""
    tl.debug_barrier()
    column = tl.arange(0, WIDTH)
    block = tl.arange(0, BLOCKS)
    for k in tl.static_range(TOP_K):
        row = tl.load(row_ptr + tl.program_id(0) * TOP_K + k)
        if row >= 0:
            tl.store(out_ptr + row.to(tl.int64) * H + column, values, mask=column < H)
            first = (row // room * (H // 128)).to(tl.int64) * room + row % room
            tl.store(
                out_scale_ptr + first + block * room, scales, mask=block < H // 128
            )


@triton.jit(
    do_not_specialize=[
        "local_expert_offset",
        "routed_scaling_factor",
        "num_tokens",
        "room",
    ]
)
def route_gather_kernel(
    logits_ptr,  # [T, E] fp32; bf16 with renorm routing; where ROUTED, ids [T, TOP_K] int32
    bias_ptr,  # [E] bf16; not read with renorm routing; where ROUTED, weights [T, TOP_K] fp32
    count_ptr,  # [E_LOCAL] int32, zeros before
    pair_ptr,  # [4, T, TOP_K] int32, all but the ranks written
    x_ptr,  # [T, H] fp8
    x_scale_ptr,  # [H / 128, T] fp32, or [T, H / 128]
    out_ptr,  # [E_LOCAL * room, H] fp8, written
    out_scale_ptr,  # [E_LOCAL, H / 128, room] fp32, written
    local_expert_offset,
    routed_scaling_factor,
    num_tokens,
    room,
    PDL: tl.constexpr,
):
    pdl_wait(PDL)
    _, _, row_ptr, _ = pointers(pair_ptr, num_tokens * TOP_K)
    values, scales = load_token(x_ptr, x_scale_ptr, num_tokens)  # arrives while routing
    expert, rank = route_token(
        logits_ptr,
        bias_ptr,
        pair_ptr,
        count_ptr,
        local_expert_offset,
        routed_scaling_factor,
        num_tokens,
    )
    slot = tl.arange(0, SLOTS)
    row = tl.where(expert >= 0, expert * room + rank, -1)
    tl.store(row_ptr + tl.program_id(0) * TOP_K + slot, row, mask=slot < TOP_K)
    store_token(values, scales, out_ptr, out_scale_ptr, row_ptr, room)


@triton.jit(do_not_specialize=["local_expert_offset", "routed_scaling_factor"])
def route_count_kernel(
    logits_ptr,  # as in route_gather_kernel
    bias_ptr,  # likewise
    count_ptr,  # likewise
    pair_ptr,  # [4, T, TOP_K] int32, all but the rows written
    local_expert_offset,
    routed_scaling_factor,
    PDL: tl.constexpr,
):
    pdl_wait(PDL)
    num_tokens = tl.num_programs(0)
    _, _, _, rank_ptr = pointers(pair_ptr, num_tokens * TOP_K)
    expert, rank = route_token(
        logits_ptr,
        bias_ptr,
        pair_ptr,
        count_ptr,
        local_expert_offset,
        routed_scaling_factor,
        num_tokens,
    )
    slot = tl.arange(0, SLOTS)
    tl.store(
        rank_ptr + tl.program_id(0) * TOP_K + slot,
        tl.where(expert >= 0, rank, -1),
        mask=slot < TOP_K,
    )


@triton.jit(do_not_specialize=["num_tokens", "room"])
def gather_kernel(
    count_ptr,  # [E_LOCAL] int32
    end_ptr,  # [E_LOCAL] int32, written
    pair_ptr,  # [4, T, TOP_K] int32: experts and ranks; rows are written
    x_ptr,  # [T, H] fp8
    x_scale_ptr,  # [H / 128, T] fp32, or [T, H / 128]
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


def gather(args, scratch, rows):
    """Route all tokens and copy them into the first GEMM's operand.

    Args:
        args: the call's arguments, as `check_arguments` returns them. In a routed layer topk_ids
            and topk_weights are used, and nothing is routed.
        scratch: what `scratch_of` returned. Written are
            counts, the number of rows of each expert;
            ends, where each expert's rows end, unless masked;
            views.pairs' experts, weights and rows;
            views.x and views.x_scale, except in rows without a pair.
        rows: what `arrange` returned for T.
    """
    x = args.hidden_states
    x_scale = args.hidden_states_scale
    num_tokens = len(x)
    if interface.ROUTED:
        routing = (args.topk_ids, args.topk_weights)
    elif problem.RENORM:
        routing = (args.routing_logits, args.routing_logits)  # no bias is read
    else:
        routing = (args.routing_logits, args.routing_bias)

    # As a float in any case, since Triton would compile another kernel for an int.
    numbers = (args.local_expert_offset, float(args.routed_scaling_factor))
    grid = (num_tokens,)
    pdl = x.device.type != "cpu"
    options = dict(PDL=pdl, num_warps=1, launch_pdl=pdl)
    views = scratch.views
    if rows.masked:
        tensors = (scratch.counts, views.pairs, x, x_scale, views.x, views.x_scale)
        route_gather_kernel[grid](
            *routing, *tensors, *numbers, num_tokens, rows.room, **options
        )
    else:
        route_count_kernel[grid](
            *routing, scratch.counts, views.pairs, *numbers, **options
        )
        tensors = (scratch.ends, views.pairs, x, x_scale, views.x, views.x_scale)
        gather_kernel[grid](scratch.counts, *tensors, num_tokens, rows.room, **options)

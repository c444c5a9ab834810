"""combine_reset: every token gathers its rows, weighs them and sums in fp32; the experts' counters become zero.

As the shared combine (whose plain statement is this one's too), over all columns at once, but for the counters, which
nobody reads any more, and for its start before gemm2 has ended.

Map of the kernel: one program a (token, BLOCK columns); program 0 of the tokens zeroes the counters.
"""

import triton
import triton.language as tl

from .predecessor import wait_for_predecessor


@triton.jit
def combine_reset_kernel(
    y_ptr,  # [total, H] bf16
    row_of_pair_ptr,  # [T, TOP_K] int32
    weight_ptr,  # [T, TOP_K] fp32
    output_ptr,  # [T, H] bf16, written
    count_ptr,  # [E_LOCAL] int32, zeroed
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    E_LOCAL: tl.constexpr,
    BINS: tl.constexpr,  # E_LOCAL, or the next power of two
    PDL: tl.constexpr,
):
    wait_for_predecessor(PDL)
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < H
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(TOP_K):
        row = tl.load(row_of_pair_ptr + token * TOP_K + k)
        weight = tl.load(weight_ptr + token * TOP_K + k)
        local = inside & (row >= 0)
        y = tl.load(y_ptr + row.to(tl.int64) * H + column, mask=local, other=0.0)
        total += tl.where(local, y.to(tl.float32) * weight, 0.0)
    tl.store(output_ptr + token.to(tl.int64) * H + column, total.to(tl.bfloat16), mask=inside)
    if token + tl.program_id(1) == 0:
        local_expert = tl.arange(0, BINS)
        tl.store(count_ptr + local_expert, tl.zeros((BINS,), tl.int32), mask=local_expert < E_LOCAL)


def combine_reset(y, row_of_pair, weight, output, counts, pdl):
    """Sum each token's weighed rows into the output, and zero the counters.

    Args:
        y: [total, H] bfloat16.
        row_of_pair: [T, TOP_K] int32, -1 where a token has no such row; weight: [T, TOP_K] float32.
        output: [T, H] bfloat16, all of it written.
        counts: [E_local] int32.
        pdl: whether the kernel starts before its predecessor ends.
    """
    (num_tokens, hidden), num_local_experts = output.shape, counts.shape[0]
    block = 512
    combine_reset_kernel[(num_tokens, -(-hidden // block))](  # triton.cdiv takes microseconds
        y,
        row_of_pair,
        weight,
        output,
        counts,
        H=hidden,
        TOP_K=row_of_pair.shape[1],
        BLOCK=block,
        E_LOCAL=num_local_experts,
        BINS=1 << (num_local_experts - 1).bit_length(),
        PDL=pdl,
        num_warps=4 if num_tokens <= 64 else 1,  # for few tokens the shortest, for many as many loads as can be
        launch_pdl=pdl,
    )

"""combine_rows: every token gathers its rows, weighs them and sums in fp32.

As the shared combine (whose plain statement is this one's too), but for its start before gemm2 has ended, and for
many tokens.

Map of the kernel: one program a (token, BLOCK columns). For few tokens it is the shared kernel, which has all loads of
y in flight together. For many it reads rows and weights of all experts at once and branches over those of other ranks:
most are, and enough programs wait for memory.
"""

import triton
import triton.language as tl

from .common.triton.combine import combine_kernel
from .common.triton.predecessor import wait_for_predecessor


@triton.jit
def combine_rows_kernel(
    y_ptr,  # [rows, num_columns] bf16
    row_of_pair_ptr,  # [T, TOP_K] int32
    weight_ptr,  # [T, TOP_K] fp32
    output_ptr,  # [T, H] bf16; columns from first_column on are written
    first_column,
    num_columns,
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,  # TOP_K, or the next power of two
    BLOCK: tl.constexpr,
    BRANCH: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_predecessor(PDL)
    if BRANCH:
        token = tl.program_id(0)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < num_columns
        slot = tl.arange(0, SLOTS)
        rows = tl.load(row_of_pair_ptr + token * TOP_K + slot, mask=slot < TOP_K, other=-1)
        weights = tl.load(weight_ptr + token * TOP_K + slot, mask=slot < TOP_K, other=0.0)
        total = tl.zeros((BLOCK,), tl.float32)
        for k in tl.static_range(TOP_K):
            row = tl.max(tl.where(slot == k, rows, -1), 0)
            if row >= 0:
                weight = tl.sum(tl.where(slot == k, weights, 0.0), 0)
                y = tl.load(y_ptr + row.to(tl.int64) * num_columns + column, mask=inside, other=0.0)
                total += y.to(tl.float32) * weight
        tl.store(output_ptr + token.to(tl.int64) * H + first_column + column, total.to(tl.bfloat16), mask=inside)
    else:
        combine_kernel(y_ptr, row_of_pair_ptr, weight_ptr, output_ptr, first_column, num_columns, H, TOP_K, BLOCK)


def combine_rows(y, row_of_pair, weight, output, first_column):
    """Sum each token's weighed rows into the output.

    Args:
        y: [rows, num_columns] bfloat16.
        row_of_pair: [T, top_k] int32, -1 where a token has no such row; weight: [T, top_k] float32.
        output: [T, H] bfloat16; columns first_column .. first_column + num_columns are written, all of them.
    """
    num_tokens, top_k = row_of_pair.shape
    num_columns = y.shape[1]
    few = num_tokens <= 64
    block, warps = (512, 4) if few else (1024, 1)
    combine_rows_kernel[(num_tokens, -(-num_columns // block))](  # triton.cdiv takes microseconds
        y,
        row_of_pair,
        weight,
        output,
        first_column,
        num_columns,
        H=output.shape[1],
        TOP_K=top_k,
        SLOTS=1 << (top_k - 1).bit_length(),
        BLOCK=block,
        BRANCH=not few,
        PDL=y.device.type != "cpu",
        num_warps=warps,
    )

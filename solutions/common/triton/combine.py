"""combine: every token gathers its rows, weighs them and sums in fp32.

A gather and no atomics: the eight terms are added in the order of the routing, so the result is the same bit for
bit in every run. A token without a local expert gets exact zeros.

Map of the kernel: one program a (token, BLOCK columns); the eight row numbers are read first, so that all the
loads that exist are in flight together. Most tokens have one row or none, so it is many small programs that keep memory
busy.
"""

import torch
import triton
import triton.language as tl


def combine_ref(y, row_of_pair, weight, output, first_column):
    """Plain statement of `combine`; writes output[:, first_column : first_column + y.shape[1]]."""
    local = row_of_pair >= 0
    terms = torch.where(local[..., None], y[row_of_pair.clamp(min=0).long()].float(), 0.0)
    total = (terms * torch.where(local, weight, 0.0)[..., None]).sum(1)
    output[:, first_column : first_column + y.shape[1]] = total.to(output.dtype)


@triton.jit
def combine_kernel(
    y_ptr,  # [rows, num_columns] bf16
    row_of_pair_ptr,  # [T, TOP_K] int32
    weight_ptr,  # [T, TOP_K] fp32
    output_ptr,  # [T, H] bf16; columns from first_column on are written
    first_column,
    num_columns,
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_columns
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(TOP_K):
        row = tl.load(row_of_pair_ptr + token * TOP_K + k)
        weight = tl.load(weight_ptr + token * TOP_K + k)
        local = inside & (row >= 0)
        y = tl.load(y_ptr + row.to(tl.int64) * num_columns + column, mask=local, other=0.0)
        total += tl.where(local, y.to(tl.float32) * weight, 0.0)
    tl.store(output_ptr + token.to(tl.int64) * H + first_column + column, total.to(tl.bfloat16), mask=inside)


def combine(y, row_of_pair, weight, output, first_column):
    """Sum each token's weighed rows into the output.

    Args:
        y: [rows, num_columns] bfloat16.
        row_of_pair: [T, 8] int32, -1 where a token has no such row; weight: [T, 8] float32.
        output: [T, H] bfloat16; columns first_column .. first_column + num_columns are written, all of them.
    """
    num_tokens, top_k = row_of_pair.shape
    num_columns = y.shape[1]
    block = 512
    combine_kernel[(num_tokens, -(-num_columns // block))](  # triton.cdiv takes microseconds
        y,
        row_of_pair,
        weight,
        output,
        first_column,
        num_columns,
        H=output.shape[1],
        TOP_K=top_k,
        BLOCK=block,
        num_warps=4 if num_tokens <= 64 else 1,  # for few tokens the shortest, for many as many loads as can be
    )

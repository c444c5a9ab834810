"""sum_rows: a token's output is the sum of its top_k rows of y, in fp32, in the routing's order.

align_fused_bf16 and gather_scatter_bf16 call it last. The FP8 layer's `combine` also multiplies by
the routing weights and skips experts of other ranks; here gemm2_bf16 has weighed the rows, and
every expert is local.

Map of the kernel: one program a (token, BLOCK columns), with the loop over its rows unrolled, so
that all loads are in flight together.
"""

import triton
import triton.language as tl


@triton.jit
def sum_rows_kernel(
    y_ptr,  # [rows, H] bf16
    row_of_pair_ptr,  # [T, TOP_K] int32; None in TOKEN_ORDER
    output_ptr,  # [T, H] bf16, written
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKEN_ORDER: tl.constexpr,
):
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < H
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(TOP_K):
        if TOKEN_ORDER:
            row = token.to(tl.int64) * TOP_K + k
        else:
            row = tl.load(row_of_pair_ptr + token * TOP_K + k).to(tl.int64)
        total += tl.load(y_ptr + row * H + column, mask=inside, other=0.0).to(
            tl.float32
        )
    tl.store(
        output_ptr + token.to(tl.int64) * H + column, total.to(tl.bfloat16), mask=inside
    )


def sum_rows(y, row_of_pair, output):
    """Write output [T, H] bfloat16 from y [rows, H] bfloat16 and row_of_pair [T, top_k] int32.

    row_of_pair is None where y is in token order, [T * top_k, H].
    """
    num_tokens, hidden = output.shape
    in_token_order = row_of_pair is None
    top_k = y.shape[0] // num_tokens if in_token_order else row_of_pair.shape[1]

    many = num_tokens > 64
    block = 2048 if many else 512
    blocks = -(-hidden // block)  # triton.cdiv takes microseconds
    sum_rows_kernel[(num_tokens, blocks)](
        y,
        row_of_pair,
        output,
        H=hidden,
        TOP_K=top_k,
        BLOCK=block,
        TOKEN_ORDER=in_token_order,
        num_warps=8 if many else 2,
    )


def sum_rows_ref(y, row_of_pair, output):
    """Compute `sum_rows` in plain torch, for tests."""
    rows = y
    if row_of_pair is not None:
        rows = y[row_of_pair.flatten().long()]

    by_token = rows.view(output.shape[0], -1, y.shape[1])
    output.copy_(by_token.float().sum(1))

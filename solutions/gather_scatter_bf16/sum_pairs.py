"""sum_pairs: add each token's top_k weighed rows, which lie together, in fp32 and in the order of the routing.

Map of the kernel: one program a (token, BLOCK columns); all its loads are in flight together.
"""

import triton
import triton.language as tl


def sum_pairs_ref(y, output):
    """Plain statement of `sum_pairs`."""
    output.copy_(y.view(output.shape[0], -1, output.shape[1]).float().sum(1))


@triton.jit
def sum_pairs_kernel(
    y_ptr,  # [T * TOP_K, H] bf16
    output_ptr,  # [T, H] bf16, written
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < H
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(TOP_K):
        total += tl.load(y_ptr + (token * TOP_K + k) * H + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output_ptr + token * H + column, total.to(tl.bfloat16), mask=inside)


def sum_pairs(y, output):
    """Write output [T, H] bfloat16 from y [T * top_k, H] bfloat16."""
    num_tokens, hidden = output.shape
    block = 2048 if num_tokens > 64 else 512
    sum_pairs_kernel[(num_tokens, -(-hidden // block))](
        y,
        output,
        H=hidden,
        TOP_K=y.shape[0] // num_tokens,
        BLOCK=block,
        num_warps=8 if block == 2048 else 2,
    )

"""combine: a token's output is the sum of its rows of y times their routing weights, in fp32.

The last stage of layer.py, sglang_triton and deepgemm.

It gathers rows and has no atomics: the terms are added in the order of the routing, so the result
is the same bit for bit in every run. A token without a local expert gets exact zeros.

A program of the kernel computes BLOCK columns of one token, in one of two forms:

- Without BRANCH the loads of y are masked, and all are in flight together: best for few tokens.
- With BRANCH row numbers and weights are loaded as vectors, and the program branches past experts
  of other ranks, which most of a token's experts are: best for many tokens, when enough other
  programs have loads in flight.

Both forms add by a fused multiply-add, and so give the same bits.
"""

import torch
import triton
import triton.language as tl

from ..pdl import pdl_wait


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
    BRANCH: tl.constexpr,
    SLOTS: tl.constexpr,  # TOP_K, or the next power of two
    PDL: tl.constexpr,
):
    pdl_wait(PDL)
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_columns

    if BRANCH:
        slot = tl.arange(0, SLOTS)
        rows = tl.load(
            row_of_pair_ptr + token * TOP_K + slot, mask=slot < TOP_K, other=-1
        )
        weights = tl.load(
            weight_ptr + token * TOP_K + slot, mask=slot < TOP_K, other=0.0
        )

    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(TOP_K):
        if BRANCH:
            row = tl.max(tl.where(slot == k, rows, -1), 0)
            if row >= 0:
                weight = tl.sum(tl.where(slot == k, weights, 0.0), 0)
                y = tl.load(
                    y_ptr + row.to(tl.int64) * num_columns + column,
                    mask=inside,
                    other=0.0,
                )
                total = tl.fma(y.to(tl.float32), weight, total)
        else:
            row = tl.load(row_of_pair_ptr + token * TOP_K + k)
            weight = tl.load(weight_ptr + token * TOP_K + k)
            local = inside & (row >= 0)
            y = tl.load(
                y_ptr + row.to(tl.int64) * num_columns + column, mask=local, other=0.0
            )
            total = tl.where(local, tl.fma(y.to(tl.float32), weight, total), total)

    tl.store(
        output_ptr + token.to(tl.int64) * H + first_column + column,
        total.to(tl.bfloat16),
        mask=inside,
    )


def combine(y, row_of_pair, weight, output, first_column, branch=False, pdl=False):
    """Write the sum of each token's weighed rows into columns of the output.

    Args:
        y: [rows, num_columns] bfloat16.
        row_of_pair: [T, top_k] int32, the row of y for a token's k-th expert, -1 for an expert of
            another rank.
        weight: [T, top_k] float32, routing weights.
        output: [T, H] bfloat16; columns first_column .. first_column + num_columns are written, all
            of them.
        branch: use the form with branches if there are more than 64 tokens.
        pdl: whether a GPU may start the kernel before the preceding one has ended; it waits by
            itself.
    """
    num_tokens, top_k = row_of_pair.shape
    num_columns = y.shape[1]
    few = num_tokens <= 64
    branch = branch and not few
    block = 1024 if branch else 512
    blocks = -(-num_columns // block)  # not triton.cdiv, whose call takes microseconds
    combine_kernel[(num_tokens, blocks)](
        y,
        row_of_pair,
        weight,
        output,
        first_column,
        num_columns,
        H=output.shape[1],
        TOP_K=top_k,
        BLOCK=block,
        BRANCH=branch,
        SLOTS=1 << (top_k - 1).bit_length(),
        PDL=pdl and y.device.type != "cpu",
        # For few tokens the time of one program counts; for many, how many loads are in flight.
        num_warps=4 if few else 1,
    )


def combine_ref(y, row_of_pair, weight, output, first_column):
    """Compute `combine` in plain torch, for tests: write the same columns of output."""
    local = row_of_pair >= 0
    rows = row_of_pair.clamp(min=0).long()
    terms = torch.where(local[..., None], y[rows].float(), 0.0)
    factors = torch.where(local, weight, 0.0)
    total = (terms * factors[..., None]).sum(1)

    columns = slice(first_column, first_column + y.shape[1])
    output[:, columns] = total.to(output.dtype)

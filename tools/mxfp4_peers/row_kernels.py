"""What vLLM's Marlin and triton_kernels leave to their caller: SwiGLU, and the sum over a token's
rows.

A row is a token's share of one expert. Where an array of an id for each row is given, rows whose id
is negative are skipped: they are of another rank's experts, and nothing wrote them.
"""

import torch
import triton
import triton.language as tl

SWIGLU_COLUMNS = 1024
SUM_COLUMNS = 1024


@triton.jit
def swiglu_kernel(
    gate_up_ptr,  # [rows, 2 * WIDTH] bf16: gate, then up
    id_ptr,  # [rows] int32
    h_ptr,  # [rows, WIDTH] bf16, written
    LIMIT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(id_ptr + row) >= 0:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < WIDTH
        gate_ptrs = gate_up_ptr + row * 2 * WIDTH + column
        gate = tl.load(gate_ptrs, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gate_ptrs + WIDTH, mask=inside, other=0.0).to(tl.float32)
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
        h = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(h_ptr + row * WIDTH + column, h.to(tl.bfloat16), mask=inside)


def swiglu(gate_up: torch.Tensor, row_ids: torch.Tensor, limit: float) -> torch.Tensor:
    """Return silu(gate) * up of each row, [rows, I] bfloat16, with gate and up clamped.

    gate_up: [rows, 2 I] bfloat16. row_ids: [rows] int32, negative where a row is skipped.
    """
    rows, twice_width = gate_up.shape
    width = twice_width // 2
    h = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    grid = (rows, triton.cdiv(width, SWIGLU_COLUMNS))
    swiglu_kernel[grid](
        gate_up, row_ids, h, LIMIT=limit, WIDTH=width, BLOCK=SWIGLU_COLUMNS
    )
    return h


def swiglu_ref(gate_up: torch.Tensor, limit: float) -> torch.Tensor:
    """Compute `swiglu` of all rows in plain torch, for tests."""
    gate, up = gate_up.float().chunk(2, dim=1)
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


@triton.jit
def sum_kernel(
    y_ptr,  # [T * TOP_K, WIDTH] bf16
    id_ptr,  # [T * TOP_K] int32
    output_ptr,  # [T, WIDTH] bf16, written
    TOP_K: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in tl.static_range(TOP_K):
        row = token * TOP_K + slot
        is_local = tl.load(id_ptr + row) >= 0
        y = tl.load(y_ptr + row * WIDTH + column, mask=inside & is_local, other=0.0)
        total += y.to(tl.float32)
    tl.store(output_ptr + token * WIDTH + column, total.to(tl.bfloat16), mask=inside)


def sum_rows(y: torch.Tensor, row_ids: torch.Tensor, output: torch.Tensor) -> None:
    """Write output [T, H] bfloat16: each token's sum of its rows of y [T * top_k, H] bfloat16.

    row_ids: [T * top_k] int32, negative where a row is skipped.
    """
    num_tokens, width = output.shape
    grid = (num_tokens, triton.cdiv(width, SUM_COLUMNS))
    sum_kernel[grid](
        y,
        row_ids,
        output,
        TOP_K=len(y) // num_tokens,
        WIDTH=width,
        BLOCK=SUM_COLUMNS,
    )


def sum_rows_ref(
    y: torch.Tensor, row_ids: torch.Tensor, num_tokens: int
) -> torch.Tensor:
    """Compute `sum_rows` in plain torch, for tests."""
    rows = torch.where(row_ids[:, None] >= 0, y.float(), 0.0)
    return rows.view(num_tokens, -1, y.shape[1]).sum(1).to(y.dtype)

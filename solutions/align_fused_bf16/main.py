"""align_fused_bf16: Qwen3-30B's bf16 MoE layer in five or six Triton kernels.

`run` is the entry point, and each stage that it calls is a file. Every expert's rows are padded to
whole row tiles; results stay in expert order until each token gathers its own.
"""

import torch

from ..common.host.check_bf16_inputs import check_bf16_inputs
from ..common.host.gpu_of import gpu_of
from ..common.host.launch import launch_quickly
from ..common.host.replay import replayed
from ..common.triton.bf16.gemm1_bf16 import gemm1_bf16, gemm1_bf16_kernel
from ..common.triton.bf16.gemm2_bf16 import gemm2_bf16, gemm2_bf16_kernel
from ..common.triton.bf16.sum_rows import sum_rows, sum_rows_kernel
from ..common.triton.rows.permute import count_kernel, permute, place_kernel
from .silu_mul import silu_mul, silu_mul_kernel
from .tiles import choose_tiles

launch_quickly(
    count_kernel,
    place_kernel,
    gemm1_bf16_kernel,
    silu_mul_kernel,
    gemm2_bf16_kernel,
    sum_rows_kernel,
)


@replayed
def run(
    hidden_states, expert_ids, expert_weights, gemm1_weights, gemm2_weights, output
):
    """Write `output` [T, H] bf16: the layer, without a router.

    Args:
        hidden_states: [T, H] bfloat16.
        expert_ids: [T, top_k] int32; expert_weights: [T, top_k] float32.
        gemm1_weights: [E, 2I, H] bfloat16, `gate` rows first; gemm2_weights: [E, H, I] bfloat16.

    Launches on the current stream and never waits for the device.

    Raises:
        ValueError: an argument is not what the definition says, or the architecture has no tile
            table.
    """
    tensors = (
        hidden_states,
        expert_ids,
        expert_weights,
        gemm1_weights,
        gemm2_weights,
        output,
    )
    check_bf16_inputs(tensors)

    num_tokens, top_k = expert_ids.shape
    if num_tokens == 0:
        return

    num_experts = gemm1_weights.shape[0]
    gpu = gpu_of(hidden_states.device)
    tile1, tile2 = choose_tiles(gpu, num_tokens * top_k, num_experts)

    with torch.cuda.device_of(hidden_states):
        rows = permute(expert_ids, num_experts, tile1.block_m)
        g = gemm1_bf16(hidden_states, gemm1_weights, rows, tile1, swiglu=False)
        h = silu_mul(g, rows, tile1.block_m, 8 * gpu.multiprocessors)
        del g  # its memory serves y
        y = gemm2_bf16(h, gemm2_weights, expert_weights, rows, tile2)
        sum_rows(y, rows.row_of_pair, output)

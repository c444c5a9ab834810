"""triton_fused_v2: the layer in five to seven Triton kernels; read `run` downhill, then a file a stage in kernels/."""

from functools import lru_cache

import torch

from .kernels.check_inputs import check_inputs
from .kernels.combine import combine, combine_kernel
from .kernels.gemm1 import gemm1, gemm1_kernel
from .kernels.gemm1_swiglu_quant import gemm1_swiglu_quant, gemm1_swiglu_quant_kernel
from .kernels.gemm2 import gemm2, gemm2_kernel
from .kernels.gpu_of import gpu_of
from .kernels.launch import launch_quickly
from .kernels.permute import count_kernel, permute, place_kernel
from .kernels.problem import NUM_EXPERTS, TOP_K
from .kernels.replay import replayed
from .kernels.route import route, route_kernel
from .kernels.swiglu_quant import swiglu_quant, swiglu_quant_kernel
from .tiles import choose

launch_quickly(
    route_kernel,
    count_kernel,
    place_kernel,
    gemm1_kernel,
    swiglu_quant_kernel,
    gemm1_swiglu_quant_kernel,
    gemm2_kernel,
    combine_kernel,
)

MAX_Y_BYTES = 900_000_000  # bound on gemm2's result, the largest scratch; wider ones are made in column slices


@lru_cache(maxsize=4096)
def column_slices(rows, hidden):
    """Number of equal column slices, each a multiple of 128 wide, that keep rows x slice x 2 bytes in bound."""
    blocks = hidden // 128
    fits = (n for n in range(1, blocks) if blocks % n == 0 and rows * (hidden // n) * 2 <= MAX_Y_BYTES)
    return next(fits, blocks)


def first_product(x, x_scale, w, w_scale, permutation, choice):
    """h and h_scale, as gemm1_swiglu_quant gives them; in expert order where gemm2 reads through TMA, else by pair."""
    tile = choice.gemm1
    if choice.fused:
        return gemm1_swiglu_quant(x, x_scale, w, w_scale, permutation, tile, choice.tma)
    g = gemm1(x, x_scale, w, w_scale, permutation, tile, choice.tma)
    return swiglu_quant(g, permutation, tile.block_m, 8 * tile.programs // tile.per_sm, choice.tma)


@replayed
def run(
    routing_logits,
    routing_bias,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
    routed_scaling_factor,
    output,
):
    """DeepSeek-V3 FP8 block-scale MoE layer of one expert-parallel rank; writes `output` [T, H] bf16.

    Shapes and dtypes are the definition's; see check_inputs. Launches on the current stream and
    never waits for the device.

    Raises:
        ValueError: an argument is not what the definition says, or the architecture has no TMA.
    """
    tensors = (
        routing_logits,
        routing_bias,
        hidden_states,
        hidden_states_scale,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
        output,
    )
    check_inputs(tensors, local_expert_offset, routed_scaling_factor)
    layer(tensors, local_expert_offset, routed_scaling_factor)


@replayed
def run_renorm(
    routing_logits,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    output,
):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    routed = (hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale, gemm2_weights)
    check_inputs((routing_logits, *routed, gemm2_weights_scale, output))
    layer((routing_logits, None, *routed, gemm2_weights_scale, output), 0, 1.0)


def layer(tensors, local_expert_offset, routed_scaling_factor):
    """Launch the layer. tensors: as check_inputs takes them, with routing_bias None where there is none."""
    logits, bias, x, x_scale, w1, w1_scale, w2, w2_scale, output = tensors
    num_tokens, hidden = x.shape
    if num_tokens == 0:
        return
    num_local_experts = w1.shape[0]
    choice = choose(*gpu_of(x.device), (num_local_experts, hidden, w2.shape[2]), TOP_K / NUM_EXPERTS, num_tokens)

    with torch.cuda.device_of(x):
        expert, weight = route(logits, bias, local_expert_offset, routed_scaling_factor, num_local_experts)
        permutation = permute(expert, num_local_experts, choice.gemm1.block_m)
        h, h_scale = first_product(x, x_scale, w1, w1_scale, permutation, choice)
        rows = permutation.pair_of_row.shape[0]
        width = hidden // column_slices(rows, hidden)
        y = torch.empty(rows, width, dtype=torch.bfloat16, device=h.device)
        for first_column in range(0, hidden, width):
            gemm2(h, h_scale, w2, w2_scale, permutation, first_column, y, choice.gemm2, choice.tma)
            combine(y, permutation.row_of_pair, weight, output, first_column)

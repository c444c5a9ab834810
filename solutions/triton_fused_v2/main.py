"""triton_fused_v2: the layer in four to seven Triton kernels; read `run` downhill, then a file a stage in kernels/."""

from functools import lru_cache

import torch

from .common.host.check_inputs import check_inputs
from .common.host.check_routed_inputs import check_routed_inputs
from .common.triton.combine import combine, combine_kernel
from .common.triton.gemm1 import gemm1, gemm1_kernel
from .common.triton.gemm1_swiglu_quant import gemm1_swiglu_quant, gemm1_swiglu_quant_kernel
from .common.triton.gemm2 import gemm2, gemm2_kernel
from .common.host.gpu_of import gpu_of
from .common.host.launch import launch_quickly
from .common.triton.permute import count_kernel, permute, place_kernel
from .common.host.problem import NUM_EXPERTS, TOP_K
from .common.triton.quantise_tokens import quantise_tokens, quantise_tokens_kernel
from .common.host.replay import replayed
from .common.triton.route import route, route_kernel
from .common.triton.swiglu_quant import swiglu_quant, swiglu_quant_kernel
from .common.triton.tiles import choose

launch_quickly(
    route_kernel,
    quantise_tokens_kernel,
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


@replayed
def run_routed(
    hidden_states,
    hidden_states_scale,
    topk_ids,
    topk_weights,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
    output,
):
    """As `run`, for routed definitions: experts and weights are given, gate comes first, scales are row-major."""
    x = (hidden_states, hidden_states_scale)
    weights = (gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale)
    check_routed_inputs((*x, topk_ids, topk_weights, *weights, output), local_expert_offset)
    if len(hidden_states):
        choice = choice_of(hidden_states, *weights)
        with torch.cuda.device_of(output):
            experts(choice, topk_ids, topk_weights, local_expert_offset, *x, *weights, output)


@replayed
def run_routed_bf16(
    hidden_states,
    topk_ids,
    topk_weights,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
    output,
):
    """As `run_routed`, for hidden_states [T, H] bf16, which a kernel quantises first."""
    weights = (gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale)
    check_routed_inputs((hidden_states, None, topk_ids, topk_weights, *weights, output), local_expert_offset)
    if len(hidden_states):
        choice = choice_of(hidden_states, *weights)
        with torch.cuda.device_of(output):
            x = quantise_tokens(hidden_states)
            experts(choice, topk_ids, topk_weights, local_expert_offset, *x, *weights, output)


def layer(tensors, local_expert_offset, routed_scaling_factor):
    """Launch the layer. tensors: as check_inputs takes them, with routing_bias None where there is none."""
    logits, bias, x, x_scale, *weights, output = tensors
    if len(x):
        choice = choice_of(x, *weights)
        with torch.cuda.device_of(x):
            routing = route(logits, bias, local_expert_offset, routed_scaling_factor, len(weights[0]))
            experts(choice, *routing, 0, x, x_scale, *weights, output)


def choice_of(x, w1, _w1_scale, w2, _w2_scale):
    """The tiles for these tokens and weights."""
    num_tokens, hidden = x.shape
    return choose(*gpu_of(x.device), (w1.shape[0], hidden, w2.shape[2]), TOP_K / NUM_EXPERTS, num_tokens)


def experts(choice, expert, weight, first_expert, x, x_scale, w1, w1_scale, w2, w2_scale, output):
    """Launch what comes after the router, on the current device. expert, first_expert: as permute takes them."""
    hidden = x.shape[1]
    permutation = permute(expert, w1.shape[0], choice.gemm1.block_m, first_expert=first_expert)
    h, h_scale = first_product(x, x_scale, w1, w1_scale, permutation, choice)
    rows = permutation.pair_of_row.shape[0]
    width = hidden // column_slices(rows, hidden)
    y = torch.empty(rows, width, dtype=torch.bfloat16, device=h.device)
    for first_column in range(0, hidden, width):
        gemm2(h, h_scale, w2, w2_scale, permutation, first_column, y, choice.gemm2, choice.tma)
        combine(y, permutation.row_of_pair, weight, output, first_column)

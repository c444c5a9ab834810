"""layer: the layer in Triton kernels, a stage each, for more tokens than the one launch takes."""

from functools import lru_cache

import torch

from ..common.host.check_inputs import check_inputs
from ..common.host.check_routed_inputs import check_routed_inputs
from ..common.triton.combine import combine, combine_kernel
from ..common.triton.gemm1 import gemm1, gemm1_kernel
from ..common.triton.gemm1_swiglu_quant import gemm1_swiglu_quant, gemm1_swiglu_quant_kernel
from ..common.triton.gemm2 import gemm2, gemm2_kernel
from ..common.host.gpu_of import gpu_of
from ..common.host.launch import launch_quickly
from ..common.triton.permute import count_kernel, permute, place_kernel
from ..common.host.problem import NUM_EXPERTS, TOP_K
from ..common.host.replay import replayed
from ..common.triton.route import route, route_kernel
from ..common.triton.swiglu_quant import swiglu_quant, swiglu_quant_kernel
from .choose_tiles import Fp16Choice, choose_many
from .gemm1_swiglu_fp16 import gemm1_swiglu_fp16, gemm1_swiglu_fp16_kernel
from .gemm2_fp16 import gemm2_fp16, gemm2_fp16_kernel

launch_quickly(
    route_kernel,
    count_kernel,
    place_kernel,
    gemm1_kernel,
    swiglu_quant_kernel,
    gemm1_swiglu_quant_kernel,
    gemm1_swiglu_fp16_kernel,
    gemm2_kernel,
    gemm2_fp16_kernel,
    combine_kernel,
)

MAX_Y_BYTES = 900_000_000  # bound on gemm2's result, the largest scratch; wider ones are made in column slices


@lru_cache(maxsize=4096)
def column_slices(rows, hidden):
    """Number of equal column slices, each a multiple of 128 wide, that keep rows x slice x 2 bytes in bound."""
    blocks = hidden // 128
    fits = (n for n in range(1, blocks) if blocks % n == 0 and rows * (hidden // n) * 2 <= MAX_Y_BYTES)
    return next(fits, blocks)


@replayed
def many_tokens(routing_logits, routing_bias, *others):
    """Launch the layer; arguments as `run` of main.py has them. Raises ValueError as check_inputs does."""
    *tensors, local_expert_offset, routed_scaling_factor, output = others
    check_inputs((routing_logits, routing_bias, *tensors, output), local_expert_offset, routed_scaling_factor)
    with torch.cuda.device_of(output):
        routing = route(routing_logits, routing_bias, local_expert_offset, routed_scaling_factor, len(tensors[2]))
        _experts(*routing, 0, *tensors, output)


@replayed
def many_tokens_renorm(routing_logits, *others):
    """As `many_tokens`, for definitions with renorm routing; arguments as `run_renorm` has them."""
    check_inputs((routing_logits, *others))
    *tensors, output = others
    with torch.cuda.device_of(output):
        _experts(*route(routing_logits, None, 0, 1.0, len(tensors[2])), 0, *tensors, output)


@replayed
def many_tokens_routed(hidden_states, hidden_states_scale, topk_ids, topk_weights, *others):
    """As `many_tokens`, behind a router; arguments as `run_routed` has them. Raises as check_routed_inputs does."""
    *weights, local_expert_offset, output = others
    x = (hidden_states, hidden_states_scale)
    check_routed_inputs((*x, topk_ids, topk_weights, *weights, output), local_expert_offset)
    with torch.cuda.device_of(output):
        _experts(topk_ids, topk_weights, local_expert_offset, *x, *weights, output)


def _experts(expert, weight, first_expert, x, x_scale, w1, w1_scale, w2, w2_scale, output):
    """Launch what comes after the router. expert, first_expert: as permute takes them."""
    num_tokens, hidden = x.shape
    choice = choose_many(*gpu_of(x.device), (len(w1), hidden, w2.shape[2]), TOP_K / NUM_EXPERTS, num_tokens)
    permutation = permute(expert, len(w1), choice.gemm1.block_m, first_expert=first_expert)
    h = _gemm1_swiglu(x, x_scale, w1, w1_scale, permutation, choice)
    rows = permutation.pair_of_row.shape[0]
    width = hidden // column_slices(rows, hidden)
    y = torch.empty(rows, width, dtype=torch.bfloat16, device=x.device)
    for first_column in range(0, hidden, width):
        if isinstance(choice, Fp16Choice):
            gemm2_fp16(*h, w2, w2_scale, permutation, first_column, y, choice.gemm2, choice.as_bytes)
        else:
            gemm2(*h, w2, w2_scale, permutation, first_column, y, choice.gemm2, choice.tma)
        combine(y, permutation.row_of_pair, weight, output, first_column)


def _gemm1_swiglu(x, x_scale, w, w_scale, permutation, choice):
    """h and its scales, as the choice's gemm2 takes them."""
    tile = choice.gemm1
    if isinstance(choice, Fp16Choice):
        return gemm1_swiglu_fp16(x, x_scale, w, w_scale, permutation, tile, choice.as_bytes)
    if choice.fused:
        return gemm1_swiglu_quant(x, x_scale, w, w_scale, permutation, tile, choice.tma)
    g = gemm1(x, x_scale, w, w_scale, permutation, tile, choice.tma)
    return swiglu_quant(g, permutation, tile.block_m, 8 * tile.programs // tile.per_sm, choice.tma)

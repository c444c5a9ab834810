"""layer: the layer in Triton kernels, a stage each, for more tokens than the one launch takes."""

import torch

from ..common.host.arguments import DS_ROUTING, RENORM_ROUTING, ROUTED, checked
from ..common.host.gpu_of import gpu_of
from ..common.host.launch import launch_quickly
from ..common.host.problem import NUM_EXPERTS, TOP_K
from ..common.host.replay import replayed
from ..common.triton.column_slices import column_slices
from ..common.triton.combine import combine, combine_kernel
from ..common.triton.gemm1 import gemm1, gemm1_kernel
from ..common.triton.gemm1_swiglu_quant import gemm1_swiglu_quant, gemm1_swiglu_quant_kernel
from ..common.triton.gemm2 import gemm2, gemm2_kernel
from ..common.triton.permute import count_kernel, permute, place_kernel
from ..common.triton.route import route_kernel, topk_of
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


def _layer(given):
    x, w1, w2, w2_scale = given.hidden_states, given.gemm1_weights, given.gemm2_weights, given.gemm2_weights_scale
    num_tokens, hidden = x.shape
    choice = choose_many(*gpu_of(x.device), (len(w1), hidden, w2.shape[2]), TOP_K / NUM_EXPERTS, num_tokens)
    with torch.cuda.device_of(x):
        expert, weight, first_expert = topk_of(given)
        permutation = permute(expert, len(w1), choice.gemm1.block_m, first_expert=first_expert)
        h = _gemm1_swiglu(x, given.hidden_states_scale, w1, given.gemm1_weights_scale, permutation, choice)
        rows = permutation.pair_of_row.shape[0]
        width = hidden // column_slices(rows, hidden)
        y = torch.empty(rows, width, dtype=torch.bfloat16, device=x.device)
        for first_column in range(0, hidden, width):
            if isinstance(choice, Fp16Choice):
                gemm2_fp16(*h, w2, w2_scale, permutation, first_column, y, choice.gemm2, choice.as_bytes)
            else:
                gemm2(*h, w2, w2_scale, permutation, first_column, y, choice.gemm2, choice.tma)
            combine(y, permutation.row_of_pair, weight, given.output, first_column)


def _gemm1_swiglu(x, x_scale, w, w_scale, permutation, choice):
    """h and its scales, as the choice's gemm2 takes them."""
    tile = choice.gemm1
    if isinstance(choice, Fp16Choice):
        return gemm1_swiglu_fp16(x, x_scale, w, w_scale, permutation, tile, choice.as_bytes)
    if choice.fused:
        return gemm1_swiglu_quant(x, x_scale, w, w_scale, permutation, tile, choice.tma)
    g = gemm1(x, x_scale, w, w_scale, permutation, tile, choice.tma)
    return swiglu_quant(g, permutation, tile.block_m, 8 * tile.programs // tile.per_sm, choice.tma)


# Each launches the layer, of its interface's arguments, and raises as `check_arguments` does.
many_tokens, many_tokens_renorm, many_tokens_routed = (
    replayed(checked(interface)(_layer)) for interface in (DS_ROUTING, RENORM_ROUTING, ROUTED)
)

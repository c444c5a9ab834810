"""layer: the FP8 layer in Triton kernels, a stage each.

They are route, permute, gemm1 with SwiGLU, gemm2 and combine.
"""

import torch

from ..host.launch import launch_quickly
from .gemms.column_slices import column_slices
from .gemms.gemm1 import gemm1, gemm1_kernel
from .gemms.gemm1_swiglu_quant import gemm1_swiglu_quant, gemm1_swiglu_quant_kernel
from .gemms.gemm2 import gemm2, gemm2_kernel
from .rows.combine import combine, combine_kernel
from .rows.permute import count_kernel, permute, place_kernel
from .rows.route import route_kernel, topk_of
from .rows.swiglu_quant import swiglu_quant, swiglu_quant_kernel

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


def gemm1_swiglu(x, x_scale, w, w_scale, permutation, choice):
    """Return h and h_scale as gemm1_swiglu_quant does.

    They are in expert order where gemm2 reads through TMA, else by pair.
    """
    tile = choice.gemm1
    if choice.fused:
        return gemm1_swiglu_quant(x, x_scale, w, w_scale, permutation, tile, choice.tma)

    g = gemm1(x, x_scale, w, w_scale, permutation, tile, choice.tma)
    multiprocessors = tile.programs // tile.per_sm
    return swiglu_quant(g, permutation, tile.block_m, 8 * multiprocessors, choice.tma)


def gemm2_columns(h, h_scale, w, w_scale, permutation, first_column, y, choice):
    """Write columns of y from first_column on, as gemm2 does."""
    gemm2(h, h_scale, w, w_scale, permutation, first_column, y, choice.gemm2, choice.tma)


def launch_layer(given, x, x_scale, choice, first_gemm=gemm1_swiglu, second_gemm=gemm2_columns):
    """Launch the stages on the current device; writes given.output.

    Args:
        given: what `check_arguments` returns, of one token or more.
        x: [T, H] float8_e4m3fn and x_scale, its scales: the caller's, or quantised.
        choice: tiles of the two GEMMs, `gemm1` and `gemm2`, and what else they take; see tiles.py.
        first_gemm, second_gemm: called as the two above.
    """
    w1 = given.gemm1_weights
    w1_scale = given.gemm1_weights_scale
    w2 = given.gemm2_weights
    w2_scale = given.gemm2_weights_scale

    expert, weight, first_expert = topk_of(given)
    permutation = permute(expert, len(w1), choice.gemm1.block_m, first_expert=first_expert)
    h, h_scale = first_gemm(x, x_scale, w1, w1_scale, permutation, choice)

    hidden = x.shape[1]
    rows = permutation.pair_of_row.shape[0]
    width = hidden // column_slices(rows, hidden)
    y = torch.empty(rows, width, dtype=torch.bfloat16, device=x.device)
    for first_column in range(0, hidden, width):
        second_gemm(h, h_scale, w2, w2_scale, permutation, first_column, y, choice)
        combine(y, permutation.row_of_pair, weight, given.output, first_column)

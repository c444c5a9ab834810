"""layer: launch the FP8 layer as Triton kernels: route, permute, gemm1 with SwiGLU, gemm2, combine.

main.py of triton_fused_v2 and many_tokens.py of mma_fused call `launch_layer`; layer_mxfp4.py calls
it with the GEMMs for MXFP4 weights. Every stage is a file in rows/ or gemms/.
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
    """Return h and h_scale as gemm1_swiglu_quant does, by one kernel or by two.

    Arguments as there. choice: a `Choice` of tiles.py. Rows are in expert order where gemm2 reads
    them through TMA (choice.tma), else in pair order.
    """
    tile = choice.gemm1
    if choice.fused:
        return gemm1_swiglu_quant(x, x_scale, w, w_scale, permutation, tile, choice.tma)

    g = gemm1(x, x_scale, w, w_scale, permutation, tile, choice.tma)
    multiprocessors = tile.programs // tile.per_sm
    return swiglu_quant(g, permutation, tile.block_m, 8 * multiprocessors, choice.tma)


def gemm2_columns(h, h_scale, w, w_scale, permutation, first_column, y, choice):
    """Write y as gemm2 does, with tile and order of h from a `Choice`. Arguments as there."""
    gemm2(
        h, h_scale, w, w_scale, permutation, first_column, y, choice.gemm2, choice.tma
    )


def launch_layer(
    args, x, x_scale, choice, first_gemm=gemm1_swiglu, second_gemm=gemm2_columns
):
    """Launch the stages on the current stream, which write args.output [T, H] bfloat16.

    Args:
        args: the call's arguments, as `check_arguments` returns them; T is at least 1.
        x: [T, H] float8_e4m3fn, the caller's tokens, or those quantised from bf16.
        x_scale: their scales, in the order that the interface has.
        choice: tiles of the two GEMMs in `gemm1` and `gemm2`, and what else they take.
        first_gemm, second_gemm: functions with the parameters of `gemm1_swiglu` and
            `gemm2_columns`, which get choice.
    """
    w1 = args.gemm1_weights
    w1_scale = args.gemm1_weights_scale
    w2 = args.gemm2_weights
    w2_scale = args.gemm2_weights_scale

    expert, weight, first_expert = topk_of(args)
    permutation = permute(
        expert, len(w1), choice.gemm1.block_m, first_expert=first_expert
    )
    h, h_scale = first_gemm(x, x_scale, w1, w1_scale, permutation, choice)

    hidden = x.shape[1]
    rows = permutation.pair_of_row.shape[0]
    width = hidden // column_slices(rows, hidden)
    y = torch.empty(rows, width, dtype=torch.bfloat16, device=x.device)
    for first_column in range(0, hidden, width):
        second_gemm(h, h_scale, w2, w2_scale, permutation, first_column, y, choice)
        combine(y, permutation.row_of_pair, weight, args.output, first_column)

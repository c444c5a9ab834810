"""layer_mxfp4: launch the layer with MXFP4 experts as Triton kernels: permute, gemm1, swiglu_quant,
gemm2, combine.

triton_fused_v2 and mma_fused call it. layer.py launches the stages, with the two GEMMs of here.
"""

from ...host.launch import launch_quickly
from ..gemms.tiles import Choice, Tile
from ..layer import launch_layer
from ..rows.swiglu_quant import swiglu_quant
from .gemm1_mxfp4 import gemm1_mxfp4, gemm1_mxfp4_kernel
from .gemm2_mxfp4 import gemm2_mxfp4, gemm2_mxfp4_kernel

launch_quickly(gemm1_mxfp4_kernel, gemm2_mxfp4_kernel)


def choose_mxfp4(multiprocessors, rows_per_expert):
    """Return the `Choice` of tiles.py by the mean of rows per expert; not tuned for any GPU."""
    block_m = 16 if rows_per_expert <= 12 else 32 if rows_per_expert <= 48 else 64
    programs = 4 * multiprocessors
    tile = Tile(block_m, 128, 8, 4, 8 if block_m == 64 else 4, 3, programs)
    return Choice(tile, tile, fused=False, tma=True)


def gemm1_swiglu(x, x_scale, w, w_scale, permutation, choice):
    """Return h [rows, I] float8_e4m3fn and h_scale [rows, I/128] float32, in expert order."""
    g = gemm1_mxfp4(x, x_scale, w, w_scale, permutation, choice.gemm1)
    return swiglu_quant(g, permutation, choice.gemm1.block_m, 2 * choice.gemm1.programs)


def gemm2_columns(h, h_scale, w, w_scale, permutation, first_column, y, choice):
    """Write y as gemm2_mxfp4 does, with the tile of a `Choice`."""
    gemm2_mxfp4(h, h_scale, w, w_scale, permutation, first_column, y, choice.gemm2)


def launch_layer_mxfp4(args, choice):
    """Launch the stages on the current stream, which write args.output [T, H] bfloat16.

    args: the call's arguments, as `check_arguments` returns them; T is at least 1.
    """
    launch_layer(
        args,
        args.hidden_states,
        args.hidden_states_scale,
        choice,
        first_gemm=gemm1_swiglu,
        second_gemm=gemm2_columns,
    )

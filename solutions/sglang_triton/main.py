"""sglang_triton: the FP8 layer with SGLang's Triton kernel for both GEMMs.

The other stages, routing, permute, SwiGLU and combine, are our kernels. There are no rows for
experts of other ranks, so they cost nothing. The second GEMM reads both operands through TMA, as
SGLang does on an H200.
"""

import torch

from ..common.host.arguments import DS_ROUTING, RENORM_ROUTING, checked
from ..common.host.launch import launch_quickly
from ..common.host.problem import NUM_SHARED_EXPERTS, TOP_K
from ..common.triton.gemms.column_slices import column_slices
from ..common.triton.rows.combine import combine, combine_kernel
from ..common.triton.rows.permute import count_kernel, permute, place_kernel
from ..common.triton.rows.route import route, route_kernel
from .grouped_gemm import grouped_gemm
from .overflow_gemm import overflow_gemm_kernel
from .overlap import overlap, replayed_or_captured
from .route_one import route_one, route_one_kernel
from .swiglu_quant_rows import swiglu_quant_rows, swiglu_quant_rows_kernel
from .tiles import choose_configs, usual_tiles

OVERLAPPING = (
    route_one_kernel,
    overflow_gemm_kernel,
    swiglu_quant_rows_kernel,
    combine_kernel,
)
launch_quickly(route_kernel, count_kernel, place_kernel, *OVERLAPPING)
overlap(*OVERLAPPING)

# of the second GEMM's result; a larger one is made in column slices
MOST_Y_BYTES = 1_200_000_000


@replayed_or_captured
@checked(DS_ROUTING)
def run(args):
    """Write `output` [T, H] bf16: DeepSeek-V3's FP8 layer, of one expert-parallel rank.

    Arguments are DS_ROUTING's (common/host/arguments.py). Launches on the current stream and never
    waits for the device.

    Raises:
        ValueError: an argument is not what the definition says.
    """
    layer(args)


@replayed_or_captured
@checked(RENORM_ROUTING)
def run_renorm(args):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    layer(args)


def layer(args):
    """Launch the layer. args: the call's arguments, as `check_arguments` returns them."""
    x = args.hidden_states
    x_scale = args.hidden_states_scale
    w1 = args.gemm1_weights
    w1_scale = args.gemm1_weights_scale
    num_tokens = len(x)
    if num_tokens == 0:
        return

    num_experts = args.routing_logits.shape[1]
    num_local_experts, _, inter = args.gemm2_weights.shape
    pairs = num_tokens * TOP_K
    first_config, second_config, by_tma = choose_configs(pairs / num_experts, inter)
    block_m = first_config["BLOCK_SIZE_M"]
    with torch.cuda.device_of(x):
        weight, permutation = order_rows(args, block_m)
        most = permutation.tile_expert.shape[0]
        # expected rows on this rank for each (token, expert) pair that the router chooses
        share = (num_local_experts - NUM_SHARED_EXPERTS) / num_experts
        share *= (TOP_K + NUM_SHARED_EXPERTS) / TOP_K
        tiles = usual_tiles(pairs, share, num_local_experts, block_m, most)

        form = dict(
            config=first_config, tiles=tiles, x_in_order=False, weights_by_tma=by_tma
        )
        g = grouped_gemm(x, x_scale, (1, num_tokens), w1, w1_scale, permutation, **form)
        h, h_scale = swiglu_quant_rows(g, permutation)
        del g  # its memory serves y
        second_gemm(args, h, h_scale, weight, permutation, second_config, tiles)


def order_rows(args, block_m):
    """Route, and return weights [T, TOP_K] float32 and the `Permutation` for tiles of block_m."""
    num_local_experts = len(args.gemm1_weights)
    routing = (
        args.routing_logits,
        args.routing_bias,
        args.local_expert_offset,
        args.routed_scaling_factor,
        num_local_experts,
    )
    num_tokens = len(args.routing_logits)
    if num_tokens == 1:
        return route_one(*routing, block_m)

    expert, weight = route(*routing)
    return weight, permute(expert, num_local_experts, block_m, padding=expert.numel())


def second_gemm(args, h, h_scale, weight, permutation, config, tiles):
    """Run the second GEMM and combine, for a slice of columns at a time; write args.output.

    h: [rows, I] float8_e4m3fn, with h_scale [rows, I / 128]. weight: [T, TOP_K] float32. config,
    tiles: as `grouped_gemm` takes them.
    """
    w2 = args.gemm2_weights
    w2_scale = args.gemm2_weights_scale
    hidden = w2.shape[1]
    form = dict(config=config, tiles=tiles, x_in_order=True, weights_by_tma=True)
    width = hidden // column_slices(len(h), hidden, MOST_Y_BYTES)
    for first in range(0, hidden, width):
        w2_slice = w2[:, first : first + width]
        scale_slice = w2_scale[:, first // 128 : (first + width) // 128]
        y = grouped_gemm(
            h, h_scale, h_scale.stride(), w2_slice, scale_slice, permutation, **form
        )
        combine(
            y,
            permutation.row_of_pair,
            weight,
            args.output,
            first,
            branch=True,
            pdl=True,
        )
        del y  # so that its memory serves the next slice

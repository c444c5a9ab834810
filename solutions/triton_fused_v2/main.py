"""triton_fused_v2: the layer in four to seven Triton kernels; read `layer`, then a file a stage in common/triton/."""

import torch

from .common.host.arguments import DS_ROUTING, RENORM_ROUTING, ROUTED, ROUTED_BF16, checked
from .common.host.gpu_of import gpu_of
from .common.host.launch import launch_quickly
from .common.host.problem import NUM_EXPERTS, TOP_K
from .common.host.replay import replayed
from .common.triton.column_slices import column_slices
from .common.triton.combine import combine, combine_kernel
from .common.triton.gemm1 import gemm1, gemm1_kernel
from .common.triton.gemm1_swiglu_quant import gemm1_swiglu_quant, gemm1_swiglu_quant_kernel
from .common.triton.gemm2 import gemm2, gemm2_kernel
from .common.triton.permute import count_kernel, permute, place_kernel
from .common.triton.quantise_tokens import quantise_tokens, quantise_tokens_kernel
from .common.triton.route import route_kernel, topk_of
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


@replayed
@checked(DS_ROUTING)
def run(given):
    """DeepSeek-V3 FP8 block-scale MoE layer of one expert-parallel rank; writes `output` [T, H] bf16.

    Arguments are DS_ROUTING's (common/host/arguments.py). Launches on the current stream and never waits for the
    device.

    Raises:
        ValueError: an argument is not what the definition says, or the architecture has no TMA.
    """
    layer(given)


@replayed
@checked(RENORM_ROUTING)
def run_renorm(given):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    layer(given)


@replayed
@checked(ROUTED)
def run_routed(given):
    """As `run`, for routed definitions: experts and weights are given, gate comes first, scales are row-major."""
    layer(given)


@replayed
@checked(ROUTED_BF16)
def run_routed_bf16(given):
    """As `run_routed`, for hidden_states [T, H] bf16, which a kernel quantises first."""
    layer(given)


def layer(given):
    """Launch the layer: the router and the quantisation only where the caller leaves them to us."""
    x, x_scale, w1, w2 = given.hidden_states, given.hidden_states_scale, given.gemm1_weights, given.gemm2_weights
    num_tokens, hidden = x.shape
    if num_tokens == 0:
        return
    choice = choose(*gpu_of(x.device), (len(w1), hidden, w2.shape[2]), TOP_K / NUM_EXPERTS, num_tokens)
    with torch.cuda.device_of(x):
        expert, weight, first_expert = topk_of(given)
        if x_scale is None:
            x, x_scale = quantise_tokens(x)
        permutation = permute(expert, len(w1), choice.gemm1.block_m, first_expert=first_expert)
        h, h_scale = first_product(x, x_scale, w1, given.gemm1_weights_scale, permutation, choice)
        rows = permutation.pair_of_row.shape[0]
        width = hidden // column_slices(rows, hidden)
        y = torch.empty(rows, width, dtype=torch.bfloat16, device=x.device)
        w2_scale = given.gemm2_weights_scale
        for first_column in range(0, hidden, width):
            gemm2(h, h_scale, w2, w2_scale, permutation, first_column, y, choice.gemm2, choice.tma)
            combine(y, permutation.row_of_pair, weight, given.output, first_column)


def first_product(x, x_scale, w, w_scale, permutation, choice):
    """h and h_scale, as gemm1_swiglu_quant gives them; in expert order where gemm2 reads through TMA, else by pair."""
    tile = choice.gemm1
    if choice.fused:
        return gemm1_swiglu_quant(x, x_scale, w, w_scale, permutation, tile, choice.tma)
    g = gemm1(x, x_scale, w, w_scale, permutation, tile, choice.tma)
    return swiglu_quant(g, permutation, tile.block_m, 8 * tile.programs // tile.per_sm, choice.tma)

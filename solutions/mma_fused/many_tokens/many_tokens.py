"""many_tokens: the layer in Triton kernels, for more tokens than the one CUDA kernel takes.

main.py calls the functions at the end of this file. Each kernel is a stage; common/triton/layer.py
launches them, with the GEMMs that choose_tiles.py chose for the GPU.
"""

import torch

from ...common.host.arguments import DS_ROUTING, RENORM_ROUTING, ROUTED, checked
from ...common.host.gpu_of import gpu_of
from ...common.host.launch import launch_quickly
from ...common.host.mxfp4_arguments import ROUTED_MXFP4
from ...common.host.problem import NUM_EXPERTS, TOP_K
from ...common.host.replay import replayed
from ...common.triton.layer import launch_layer
from ...common.triton.mxfp4.layer_mxfp4 import launch_layer_mxfp4
from .choose_tiles import Fp16Choice, choose_many, choose_many_mxfp4
from .gemm1_swiglu_fp16 import gemm1_swiglu_fp16, gemm1_swiglu_fp16_kernel
from .gemm1_swiglu_mxfp4 import gemm1_swiglu_mxfp4, gemm1_swiglu_mxfp4_kernel
from .gemm2_fp16 import gemm2_fp16, gemm2_fp16_kernel
from .gemm2_mxfp4_bf16 import gemm2_mxfp4_bf16, gemm2_mxfp4_bf16_kernel

launch_quickly(
    gemm1_swiglu_fp16_kernel,
    gemm2_fp16_kernel,
    gemm1_swiglu_mxfp4_kernel,
    gemm2_mxfp4_bf16_kernel,
)


def _layer(args):
    """Launch the layer. args: the call's arguments, as `check_arguments` returns them."""
    x = args.hidden_states
    num_tokens, hidden = x.shape
    inter = args.gemm2_weights.shape[2]
    geometry = (len(args.gemm1_weights), hidden, inter)
    choice = choose_many(*gpu_of(x.device), geometry, TOP_K / NUM_EXPERTS, num_tokens)

    gemms = ()  # the FP8 GEMMs, which are launch_layer's defaults
    if isinstance(choice, Fp16Choice):
        gemms = (gemm1_swiglu_fp16, gemm2_fp16)
    with torch.cuda.device_of(x):
        launch_layer(args, x, args.hidden_states_scale, choice, *gemms)


def _layer_mxfp4(args):
    """As `_layer`, with MXFP4 experts."""
    x = args.hidden_states
    architecture, _, multiprocessors = gpu_of(x.device)
    rows_per_expert = len(x) * TOP_K / NUM_EXPERTS
    choice = choose_many_mxfp4(architecture, multiprocessors, rows_per_expert)

    with torch.cuda.device_of(x):
        if isinstance(choice, Fp16Choice):
            x_scale = args.hidden_states_scale
            launch_layer(args, x, x_scale, choice, gemm1_swiglu_mxfp4, gemm2_mxfp4_bf16)
        else:
            launch_layer_mxfp4(args, choice)


# Each takes its interface's arguments, launches the layer, and raises as `check_arguments` does.
many_tokens = replayed(checked(DS_ROUTING)(_layer))
many_tokens_renorm = replayed(checked(RENORM_ROUTING)(_layer))
many_tokens_routed = replayed(checked(ROUTED)(_layer))
many_tokens_mxfp4 = checked(ROUTED_MXFP4)(_layer_mxfp4)

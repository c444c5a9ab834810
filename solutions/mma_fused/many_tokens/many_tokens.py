"""many_tokens: the layer in Triton kernels, for more tokens than the one launch takes.

Each kernel is a stage.
"""

import torch

from ...common.host.arguments import DS_ROUTING, RENORM_ROUTING, ROUTED, checked
from ...common.host.gpu_of import gpu_of
from ...common.host.launch import launch_quickly
from ...common.host.problem import NUM_EXPERTS, TOP_K
from ...common.host.replay import replayed
from ...common.triton.layer import launch_layer
from .choose_tiles import Fp16Choice, choose_many
from .gemm1_swiglu_fp16 import gemm1_swiglu_fp16, gemm1_swiglu_fp16_kernel
from .gemm2_fp16 import gemm2_fp16, gemm2_fp16_kernel

launch_quickly(gemm1_swiglu_fp16_kernel, gemm2_fp16_kernel)


def _layer(given):
    """Launch the layer. given: what `check_arguments` returns."""
    x = given.hidden_states
    num_tokens, hidden = x.shape
    inter = given.gemm2_weights.shape[2]
    geometry = (len(given.gemm1_weights), hidden, inter)
    choice = choose_many(*gpu_of(x.device), geometry, TOP_K / NUM_EXPERTS, num_tokens)

    gemms = ()  # launch_layer's own
    if isinstance(choice, Fp16Choice):
        gemms = (gemm1_swiglu_fp16, gemm2_fp16)
    with torch.cuda.device_of(x):
        launch_layer(given, x, given.hidden_states_scale, choice, *gemms)


# Each launches the layer, of its interface's arguments, and raises as `check_arguments` does.
many_tokens = replayed(checked(DS_ROUTING)(_layer))
many_tokens_renorm = replayed(checked(RENORM_ROUTING)(_layer))
many_tokens_routed = replayed(checked(ROUTED)(_layer))

"""many_tokens: the layer in Triton kernels, a stage each, for more tokens than the one launch
takes.
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
    x, x_scale, w1, w2 = (
        given.hidden_states,
        given.hidden_states_scale,
        given.gemm1_weights,
        given.gemm2_weights,
    )
    num_tokens, hidden = x.shape
    choice = choose_many(
        *gpu_of(x.device), (len(w1), hidden, w2.shape[2]), TOP_K / NUM_EXPERTS, num_tokens
    )
    gemms = (gemm1_swiglu_fp16, gemm2_fp16) if isinstance(choice, Fp16Choice) else ()
    with torch.cuda.device_of(x):
        launch_layer(given, x, x_scale, choice, *gemms)


# Each launches the layer, of its interface's arguments, and raises as `check_arguments` does.
many_tokens, many_tokens_renorm, many_tokens_routed = (
    replayed(checked(interface)(_layer)) for interface in (DS_ROUTING, RENORM_ROUTING, ROUTED)
)

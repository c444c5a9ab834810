"""triton_fused_v2: the FP8 layer in four to seven Triton kernels.

This file has the entry points. common/triton/layer.py launches the stages, each of which is a file
in common/triton.
"""

import torch

from ..common.host.arguments import (
    DS_ROUTING,
    RENORM_ROUTING,
    ROUTED,
    ROUTED_BF16,
    checked,
)
from ..common.host.gpu_of import gpu_of
from ..common.host.launch import launch_quickly
from ..common.host.mxfp4_arguments import ROUTED_MXFP4, as_int8
from ..common.host.problem import NUM_EXPERTS, TOP_K
from ..common.host.replay import replayed
from ..common.triton.gemms.tiles import choose
from ..common.triton.layer import launch_layer
from ..common.triton.mxfp4.layer_mxfp4 import choose_mxfp4, launch_layer_mxfp4
from ..common.triton.rows.quantise_tokens import quantise_tokens, quantise_tokens_kernel

launch_quickly(quantise_tokens_kernel)


@replayed
@checked(DS_ROUTING)
def run(args):
    """Write `output` [T, H] bf16: DeepSeek-V3's FP8 layer, of one expert-parallel rank.

    Arguments are DS_ROUTING's (common/host/arguments.py). Launches on the current stream and never
    waits for the device.

    Raises:
        ValueError: an argument is not what the definition says, or the architecture has no TMA.
    """
    layer(args)


@replayed
@checked(RENORM_ROUTING)
def run_renorm(args):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    layer(args)


@replayed
@checked(ROUTED)
def run_routed(args):
    """As `run`, for routed definitions.

    The caller passes experts and their weights; `gate` rows of gemm1_weights come first; the scales
    of tokens are [T, H / 128].
    """
    layer(args)


@replayed
@checked(ROUTED_BF16)
def run_routed_bf16(args):
    """As `run_routed`, for hidden_states [T, H] bf16, which a kernel quantises first."""
    layer(args)


@as_int8
@checked(ROUTED_MXFP4)
def run_mxfp4(args):
    """As `run_routed`, for MXFP4 experts: bytes of two E2M1, and an E8M0 scale for each 32 of K."""
    x = args.hidden_states
    if len(x) == 0:
        return
    _, _, multiprocessors = gpu_of(x.device)
    choice = choose_mxfp4(multiprocessors, len(x) * TOP_K / NUM_EXPERTS)
    with torch.cuda.device_of(x):
        launch_layer_mxfp4(args, choice)


def layer(args):
    """Launch the layer, after quantising the tokens if they are bf16.

    args: the call's arguments, as `check_arguments` returns them.
    """
    x = args.hidden_states
    x_scale = args.hidden_states_scale
    num_tokens = len(x)
    if num_tokens == 0:
        return

    geometry = tuple(args.gemm2_weights.shape)  # E_local, H, I
    choice = choose(*gpu_of(x.device), geometry, TOP_K / NUM_EXPERTS, num_tokens)
    with torch.cuda.device_of(x):
        if x_scale is None:
            x, x_scale = quantise_tokens(x)
        launch_layer(args, x, x_scale, choice)

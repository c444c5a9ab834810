"""cutlass_grouped: CUTLASS's grouped FP8 products between our own kernels, all launched by one C++ call.

layer.cu is the map; every other CUDA file is one stage or one tile. docs/cutlass_grouped.md tells more.
"""

from functools import lru_cache

from .build import load_kernels
from .kernels.check_inputs import check_inputs
from .tiles import choose_tiles

_kernels = load_kernels()  # compiled here, when the solution is built, not when it is first called
_run_layer = _kernels.run_layer


@lru_cache(maxsize=4096)
def _tile_numbers(num_tokens):
    return tuple(_kernels.tile_number(name) for name in choose_tiles(num_tokens))


def run(
    routing_logits,
    routing_bias,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
    routed_scaling_factor,
    output,
):
    """DeepSeek-V3 FP8 block-scale MoE layer of one expert-parallel rank; writes `output` [T, 7168] bf16.

    Shapes and dtypes are the definition's. Launches on the current stream and never waits for the device.

    Raises:
        ValueError: an argument is not what the definition says; checked before anything is launched.
        RuntimeError: CUDA refuses a call.
    """
    arguments = (
        routing_logits,
        routing_bias,
        hidden_states,
        hidden_states_scale,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
        local_expert_offset,
        routed_scaling_factor,
        output,
    )
    if isinstance(local_expert_offset, bool) or isinstance(routed_scaling_factor, bool):
        _refuse_unfit(arguments)  # the binding would take True for 1
    try:
        fit = _run_layer(*arguments, *_tile_numbers(routing_logits.shape[0]))
    except (AttributeError, IndexError, TypeError, BufferError, RuntimeError):
        _refuse_unfit(arguments)  # the binding could not even hand it over
        raise
    if not fit:
        _refuse_unfit(arguments)
        where = f"{routing_logits.device}, {list(gemm1_weights.shape)}"
        raise ValueError(f"gemm1_weights: device and shape are {where}, want a CUDA device, [32, 4096, 7168]")


def _refuse_unfit(arguments):
    """Raise ValueError naming what is wrong, if something is; in Python, since C++ has only said that something is."""
    *tensors, local_expert_offset, routed_scaling_factor, output = arguments
    check_inputs((*tensors, output), local_expert_offset, routed_scaling_factor)

"""cutlass_grouped: CUTLASS's grouped FP8 GEMMs between our own kernels, all launched by one C++ call.

layer.cu is the map; every other CUDA file is one stage or one tile. docs/history/cutlass_grouped.md has measurements.
"""

from functools import lru_cache

from .build import load_kernels
from .common.host.check_inputs import check_inputs
from .tiles import choose_tiles

_gemms, _layer = load_kernels()  # compiled on import, when the solution is built, not at its first call


@lru_cache(maxsize=4096)
def _tiles(num_tokens):
    return tuple(_gemms.find_tile(name) for name in choose_tiles(num_tokens))


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
    """DeepSeek-V3 FP8 block-scale MoE layer of one expert-parallel rank; writes `output` [T, H] bf16.

    Shapes and dtypes are the definition's. Launches on the current stream and never waits for the device.

    Raises:
        ValueError: an argument is not what the definition says, or there are more than 131072 tokens; checked before
            anything is launched.
        RuntimeError: CUDA refuses a call.
    """
    tensors = (
        routing_logits,
        routing_bias,
        hidden_states,
        hidden_states_scale,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
    )
    _call(_layer.run_layer, tensors, (local_expert_offset, routed_scaling_factor), output)


def run_renorm(
    routing_logits,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    output,
):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    tensors = (
        routing_logits,
        hidden_states,
        hidden_states_scale,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
    )
    _call(_layer.run_renorm, tensors, (), output)


def _call(function, tensors, scalars, output):
    if any(isinstance(value, bool) for value in scalars):  # the binding would take True for 1
        check_inputs((*tensors, output), *scalars)
    try:
        function(*tensors, *scalars, output, *_tiles(tensors[0].shape[0]))
    except (AttributeError, IndexError, TypeError, ValueError, BufferError, RuntimeError):
        check_inputs((*tensors, output), *scalars)  # names what the binding could not convert
        raise

"""hopper_fused: one persistent CUDA kernel for the whole layer up to 1024 tokens, Triton stages above.

Up to 1024 tokens the weights' way through memory bounds the layer, so everything is one launch that streams them
(fused_layer.cu; docs/hopper_fused.md tells how it came about), and h is kept in two FP8 terms, which costs nothing
there. Above, the tensor cores bound it: the stages of kernels/ with `TERMS` terms of h.
"""

from functools import lru_cache

import torch

from .build import load_kernel
from .many_tokens import run_many_tokens
from .terms import TERMS


@lru_cache(maxsize=64)
def _scratch(device, stream):
    """Scratch of the fused kernel, its counters zero; one for each stream, since calls on it follow each other."""
    return torch.zeros((load_kernel().scratch_bytes(),), dtype=torch.uint8, device=device)


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
        RuntimeError: the kernel cannot be compiled, or the device is not a Hopper GPU.
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
    device = _device_index(output)
    if torch.cuda.is_current_stream_capturing():
        # a graph may be replayed beside this stream: its scratch is its own, from the graph's pool
        scratch = torch.empty((load_kernel().scratch_bytes(),), dtype=torch.uint8, device=output.device)
        scratch[:128].zero_()
    else:
        scratch = _scratch(device, torch._C._cuda_getCurrentRawStream(device))
    if not load_kernel().run_fused(*arguments, scratch):
        run_many_tokens(*arguments, terms=TERMS)


def _device_index(output):
    if not isinstance(output, torch.Tensor) or output.device.type != "cuda":
        what = f"a tensor on {output.device}" if isinstance(output, torch.Tensor) else type(output).__name__
        raise ValueError(f"output: got {what}, want a tensor on a CUDA device")
    return output.device.index

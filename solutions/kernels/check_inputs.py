"""check_inputs: refuse what the kernels were not written for, before anything is launched."""

import torch

_SHAPES = {
    "routing_logits": (("seq_len", "num_experts"), torch.float32),
    "routing_bias": (("num_experts",), torch.bfloat16),
    "hidden_states": (("seq_len", "hidden_size"), torch.float8_e4m3fn),
    "hidden_states_scale": (("num_hidden_blocks", "seq_len"), torch.float32),
    "gemm1_weights": (("num_local_experts", "gemm1_out_size", "hidden_size"), torch.float8_e4m3fn),
    "gemm1_weights_scale": (("num_local_experts", "num_gemm1_out_blocks", "num_hidden_blocks"), torch.float32),
    "gemm2_weights": (("num_local_experts", "hidden_size", "intermediate_size"), torch.float8_e4m3fn),
    "gemm2_weights_scale": (("num_local_experts", "num_hidden_blocks", "num_intermediate_blocks"), torch.float32),
    "output": (("seq_len", "hidden_size"), torch.bfloat16),
}
_BLOCK = 128
_NUM_GROUPS = 8


def check_inputs(local_expert_offset, routed_scaling_factor, **tensors):
    """Check one call of the layer.

    Args:
        local_expert_offset: int, 0 <= offset <= num_experts - num_local_experts.
        routed_scaling_factor: float.
        tensors: the definition's eight input tensors and `output`, by name.

    Raises:
        ValueError: dtype, rank, size, device, contiguity or 16-byte alignment of an argument is not what the
            definition says; the message names the argument, what it got and what it wants.
    """
    logits, w1, w2 = tensors["routing_logits"], tensors["gemm1_weights"], tensors["gemm2_weights"]
    for name, tensor, rank in (("routing_logits", logits, 2), ("gemm1_weights", w1, 3), ("gemm2_weights", w2, 3)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != rank:
            raise ValueError(f"{name}: got {_describe(tensor)}, want a tensor of {rank} dimensions")
    seq_len, num_experts = logits.shape
    num_local_experts, gemm1_out, hidden = w1.shape
    inter = gemm1_out // 2
    size = {
        "seq_len": seq_len,
        "num_experts": num_experts,
        "num_local_experts": num_local_experts,
        "hidden_size": hidden,
        "intermediate_size": inter,
        "gemm1_out_size": 2 * inter,
        "num_hidden_blocks": hidden // _BLOCK,
        "num_intermediate_blocks": inter // _BLOCK,
        "num_gemm1_out_blocks": 2 * inter // _BLOCK,
    }
    for name, value in (("hidden_size", hidden), ("intermediate_size", inter)):
        if value == 0 or value % _BLOCK:
            raise ValueError(f"gemm1_weights: {name} is {value}, want a multiple of {_BLOCK}")
    for name, value in (("num_experts", num_experts), ("num_local_experts", num_local_experts)):
        if value < _NUM_GROUPS or value & (value - 1):
            raise ValueError(f"{name}: got {value}, want a power of two of at least {_NUM_GROUPS}")
    for name, (axes, dtype) in _SHAPES.items():
        tensor = tensors[name]
        want = tuple(size[axis] for axis in axes)
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != dtype or tuple(tensor.shape) != want:
            raise ValueError(f"{name}: got {_describe(tensor)}, want {dtype} of shape {list(want)} [{', '.join(axes)}]")
        if tensor.device != logits.device:
            raise ValueError(f"{name}: is on {tensor.device}, want {logits.device} as routing_logits")
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: has strides {list(tensor.stride())}, want a contiguous tensor")
        if tensor.data_ptr() % 16:
            raise ValueError(f"{name}: starts at an address that is not a multiple of 16 bytes, which TMA needs")
    if not 0 <= local_expert_offset <= num_experts - num_local_experts:
        raise ValueError(
            f"local_expert_offset: got {local_expert_offset}, want 0 to {num_experts - num_local_experts}"
        )
    if not isinstance(routed_scaling_factor, (int, float)):
        raise ValueError(f"routed_scaling_factor: got {type(routed_scaling_factor).__name__}, want a number")


def _describe(value):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    return type(value).__name__

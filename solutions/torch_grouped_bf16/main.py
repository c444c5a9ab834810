"""torch_grouped_bf16: the layer as torch alone writes it, around its own grouped matrix product.

Rows are sorted by expert with torch's sort, copied into that order, multiplied by `grouped_mm`, and
brought back by the sort's inverse. Nothing waits for the device: where each expert ends is a
tensor.
"""

import torch

from ..common.host.check_bf16_inputs import check_bf16_inputs

# public from torch 2.10 on; the same operator before
_grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm


def run(hidden_states, expert_ids, expert_weights, gemm1_weights, gemm2_weights, output):
    """Write `output` [T, H] bf16: a bf16 MoE layer with given experts.

    Shapes and dtypes are the definition's; see check_bf16_inputs.

    Raises:
        ValueError: an argument is not what the definition says.
    """
    tensors = (hidden_states, expert_ids, expert_weights, gemm1_weights, gemm2_weights, output)
    check_bf16_inputs(tensors)

    num_tokens, top_k = expert_ids.shape
    if num_tokens == 0:
        return

    num_experts = gemm1_weights.shape[0]
    sorted_ids, pair_of_row = expert_ids.flatten().sort(stable=True)
    experts = torch.arange(num_experts, dtype=torch.int32, device=expert_ids.device)
    ends = torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)

    x = hidden_states[pair_of_row // top_k]
    g = _grouped_mm(x, gemm1_weights.transpose(1, 2), offs=ends)
    gate, up = g.chunk(2, dim=1)
    h = torch.nn.functional.silu(gate).mul_(up)
    y = _grouped_mm(h, gemm2_weights.transpose(1, 2), offs=ends)

    by_pair = torch.empty_like(y)
    by_pair[pair_of_row] = y
    by_token = by_pair.view(num_tokens, top_k, -1)
    weight = expert_weights.to(torch.bfloat16)
    torch.bmm(weight.view(num_tokens, 1, top_k), by_token, out=output.unsqueeze(1))

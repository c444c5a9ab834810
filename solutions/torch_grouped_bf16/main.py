"""torch_grouped_bf16: Qwen3-30B's bf16 MoE layer in torch alone, around torch's `grouped_mm`.

Tokens are copied into the order of experts, multiplied by `grouped_mm`, and brought back to token
order. Where each expert's rows end is a tensor on the device, so nothing waits for the device.
"""

import torch

from ..common.host.check_bf16_inputs import check_bf16_inputs

# public from torch 2.10 on; the same operator before
_grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm


def run(
    hidden_states, expert_ids, expert_weights, gemm1_weights, gemm2_weights, output
):
    """Write `output` [T, H] bf16: the layer, without a router.

    Args:
        hidden_states: [T, H] bfloat16.
        expert_ids: [T, top_k] int32; expert_weights: [T, top_k] float32.
        gemm1_weights: [E, 2I, H] bfloat16, `gate` rows first; gemm2_weights: [E, H, I] bfloat16.

    Raises:
        ValueError: an argument is not what the definition says.
    """
    tensors = (
        hidden_states,
        expert_ids,
        expert_weights,
        gemm1_weights,
        gemm2_weights,
        output,
    )
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

"""The rank's share of a batch's routing, as both vLLM's and triton_kernels' peers want it."""

from dataclasses import dataclass

import torch
from batch import Batch
from moebench.operators.fp8.reference import dequantize


@dataclass(frozen=True)
class RoutedRows:
    """Tokens with their experts. A row is a token's share of one expert, T * top_k in all.

    Every id is one of the model's experts.
    """

    tokens: torch.Tensor  # [T, H] bf16
    topk_ids: torch.Tensor  # [T, top_k] int32, of all of the model's experts
    topk_weights: torch.Tensor  # [T, top_k] fp32
    # of the rank's experts; -1 for another rank's
    local_ids: torch.Tensor  # [T * top_k] int32
    num_experts: int  # of the model
    num_local_experts: int
    first_expert: int
    limit: float  # of SwiGLU's clamp

    @property
    def top_k(self) -> int:
        return self.topk_ids.shape[1]


def routed_rows(batch: Batch) -> RoutedRows:
    """Return the tokens in bf16 and their experts, of a batch of the MXFP4 definition."""
    inputs = batch.inputs
    num_local_experts = len(inputs["gemm1_weights"])
    first_expert = int(inputs["local_expert_offset"])
    scales = inputs["hidden_states_scale"]
    tokens = dequantize(inputs["hidden_states"], scales, row_block=1)
    return RoutedRows(
        tokens=tokens.bfloat16(),
        topk_ids=inputs["topk_ids"],
        topk_weights=inputs["topk_weights"],
        local_ids=local_ids(inputs["topk_ids"], first_expert, num_local_experts),
        num_experts=batch.sizes["num_experts"],
        num_local_experts=num_local_experts,
        first_expert=first_expert,
        limit=float(batch.sizes["swiglu_limit"]),
    )


def local_ids(
    topk_ids: torch.Tensor, first_expert: int, num_local_experts: int
) -> torch.Tensor:
    """Return each row's expert, counted from the rank's first, [T * top_k] int32.

    It is -1 where the expert is another rank's.
    """
    ids = topk_ids.flatten() - first_expert
    is_local = (ids >= 0) & (ids < num_local_experts)
    return torch.where(is_local, ids, -1).int()

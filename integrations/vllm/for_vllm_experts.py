"""for_vllm_experts: the class that vLLM calls for the experts of a layer.

for_vllm_fp8.py and for_vllm_mxfp4.py derive from it. It is written after vLLM 0.26.0 and 0.33.0,
which agree in all that is used here.
"""

# pyright: reportMissingImports=false
# vLLM is installed where a package is used, not here.

from abc import abstractmethod
from functools import cache, partial

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import (
    TopKWeightAndReduceNoOP,
)

from integrations.vllm.for_vllm_checks import ACTIVATION, refuse


class PackedExperts(mk.FusedMoEExpertsModular):
    """Computes, from tokens and the router's choice, the weighted sum over this rank's experts.

    With tensor parallelism a rank has a slice of every expert, and the sum is over these slices. In
    any case vLLM adds up the ranks' sums.

    Before vLLM 0.32 `apply` gets a workspace as output, from which vLLM would copy the result. To
    save the copy, `apply` then only stores the call in `waiting`, and the object that vLLM gets
    from `finalize_weight_and_reduce_impl` next makes it, with the right output.
    """

    waiting = None

    @abstractmethod
    def layer(self, hidden_states, scale, *arguments):
        """Write the layer's result into the last argument, output [T, H] bfloat16.

        hidden_states: [T, H], FP8, or bfloat16 where `scale` is None. arguments: topk_ids,
        topk_weights, gemm1's weights and their scales, gemm2's weights and their scales, number of
        this rank's first expert, output.
        """

    @staticmethod
    def activation_format():
        return mk.FusedMoEActivationFormat.Standard

    @staticmethod
    def _supports_current_device():
        return True  # the package says so itself, at import

    @staticmethod
    def _supports_no_act_and_mul():
        return False

    @staticmethod
    def _supports_activation(activation):
        return activation == ACTIVATION

    @staticmethod
    def _supports_parallel_config(moe_parallel_config):
        return (
            not moe_parallel_config.use_all2all_kernels
            or moe_parallel_config.use_ag_rs_all2all_kernels
        )

    def finalize_weight_and_reduce_impl(self):
        call = self.waiting
        self.waiting = None
        return ComputeIntoResult(call) if call else TopKWeightAndReduceNoOP()

    def workspace_shapes(
        self,
        M,
        N,
        K,
        topk,
        global_num_experts,
        local_num_experts,
        expert_tokens_meta,
        activation,
    ):
        return (0,), (0,), (M, K)

    def apply(
        self,
        output,
        hidden_states,
        w1,
        w2,
        topk_weights,
        topk_ids,
        activation,
        global_num_experts,
        expert_map,
        a1q_scale,
        a2_scale,
        workspace13,
        workspace2,
        expert_tokens_meta,
        apply_router_weight_on_input,
    ):
        refuse(apply_router_weight_on_input=apply_router_weight_on_input)
        refuse(post_gemm2_hook=getattr(self, "post_gemm2_hook", None))

        offset = 0 if expert_map is None else first_local(expert_map)
        if offset is None:
            # The package takes a rank's experts as consecutive ids: number them from 0 instead.
            topk_ids = torch.where(topk_ids < 0, -1, expert_map[topk_ids.clamp(min=0)])
            offset = 0

        call = partial(
            self.layer,
            hidden_states.contiguous(),
            a1q_scale,
            topk_ids.to(torch.int32),
            topk_weights.float(),
            w1,
            self.w1_scale,
            w2,
            self.w2_scale,
            offset,
        )
        # before vLLM 0.32: see the class
        if share_storage(output, workspace13):
            self.waiting = call
        else:
            call(output)


class ComputeIntoResult(TopKWeightAndReduceNoOP):
    """Makes the call that PackedExperts.apply has stored, into the tensor of vLLM's result."""

    def __init__(self, call):
        self.call = call

    def apply(
        self,
        output,
        fused_expert_output,
        topk_weights,
        topk_ids,
        apply_router_weight_on_input,
    ):
        written = (
            output
            if output is not None and output.is_contiguous()
            else fused_expert_output
        )
        self.call(written)
        return super().apply(
            output, written, topk_weights, topk_ids, apply_router_weight_on_input
        )


# Cached because reading the map waits for the device, which is not allowed while a CUDA graph is
# captured. vLLM calls a layer before it captures it, and always with the same tensor.
@cache
def first_local(expert_map):
    """Return the global id of this rank's first expert, None where the ids are not consecutive.

    expert_map: [E] int32: for each global id the number among this rank's experts, or -1.
    """
    numbers = expert_map.tolist()
    first = numbers.index(0)
    local_experts = max(numbers) + 1

    before = [-1] * first
    after = [-1] * (len(numbers) - first - local_experts)
    consecutive = before + list(range(local_experts)) + after
    return first if numbers == consecutive else None


def share_storage(output, workspace):
    """Return whether two tensors are in one allocation. workspace: may be None."""
    if workspace is None:
        return False
    return workspace.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()

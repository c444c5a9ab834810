"""for_vllm_experts: vLLM's classes around run_bf16: config -> a layer's method -> experts.

They follow the sources of 0.26.0 and 0.33.0. They are module-level, as vLLM pickles a config for
the processes that it spawns.
"""

# pyright: reportMissingImports=false
# vLLM is installed where a package is used, not here.

from functools import cache, partial

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.layers.quantization.fp8 import Fp8Config, Fp8MoEMethod
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    kFp8Dynamic128Sym,
    kFp8Static128BlockSym,
)

from integrations import run_bf16
from integrations.for_engines import ACTIVE, NAME, check_sizes
from solutions.common.host import problem

logger = init_logger(f"vllm.{NAME}")  # vLLM shows what is below its own name
STEP_LIMIT = 7.0  # vLLM's SWIGLUSTEP has no other
ACTIVATION = MoEActivation.SILU
if problem.CLAMP_AFTER_SILU:
    ACTIVATION = MoEActivation.SWIGLUSTEP
elif problem.SWIGLU_UP_OFFSET:
    ACTIVATION = MoEActivation.SWIGLUOAI_UNINTERLEAVE


class PackedExperts(mk.FusedMoEExpertsModular):
    """Tokens in bf16 and the router's choice in, the weighted sum over this rank's experts out."""

    waiting = None  # the call that `apply` left to what vLLM asks for next

    @staticmethod
    def activation_format():
        return mk.FusedMoEActivationFormat.Standard

    @property
    def expects_unquantized_inputs(self):
        return True

    @staticmethod
    def _supports_current_device():
        return True  # the package says so itself, at import

    @staticmethod
    def _supports_no_act_and_mul():
        return False

    @staticmethod
    def _supports_quant_scheme(weight_key, activation_key):
        return (weight_key, activation_key) == (kFp8Static128BlockSym, kFp8Dynamic128Sym)

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
        self, M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation
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
            topk_ids = torch.where(topk_ids < 0, -1, expert_map[topk_ids.clamp(min=0)])
            offset = 0

        call = partial(
            run_bf16,
            hidden_states.contiguous(),
            topk_ids.to(torch.int32),
            topk_weights.float(),
            w1,
            self.w1_scale,
            w2,
            self.w2_scale,
            offset,
        )
        # before vLLM 0.32 output is a workspace, of which the layer's result is a copy
        if share_storage(output, workspace13):
            self.waiting = call
        else:
            call(output)


class ComputeIntoResult(TopKWeightAndReduceNoOP):
    """The layer, computed where vLLM wants the result: no copy of [T, H]."""

    def __init__(self, call):
        self.call = call

    def apply(
        self, output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input
    ):
        written = output if output is not None and output.is_contiguous() else fused_expert_output
        self.call(written)
        return super().apply(output, written, topk_weights, topk_ids, apply_router_weight_on_input)


class PackedMoEMethod(Fp8MoEMethod):
    """vLLM's method for FP8, with weights left as they are loaded and other experts."""

    def __init__(self, quant_config, layer):
        super().__init__(quant_config, layer)  # logs a backend of vLLM's, which is not used
        check(self.moe, quant_config)
        refuse(apply_router_weight_on_input=getattr(layer, "apply_router_weight_on_input", False))

        supported, reason = PackedExperts.is_supported_config(
            PackedExperts,
            self.moe,
            kFp8Static128BlockSym,
            kFp8Dynamic128Sym,
            mk.FusedMoEActivationFormat.Standard,
        )
        if not supported:
            raise ValueError(f"{NAME}: {reason}")

        # of vLLM's backends TRITON is the one that changes neither weights nor scales
        self.fp8_backend = Fp8MoeBackend.TRITON
        self.experts_cls = PackedExperts
        logger.info_once(ACTIVE)


class PackedFp8Config(Fp8Config):
    """vLLM's config of FP8 checkpoints, but for the method of MoE layers."""

    def get_quant_method(self, layer, prefix):
        method = super().get_quant_method(layer, prefix)
        return PackedMoEMethod(self, layer) if type(method) is Fp8MoEMethod else method


# reading it waits for the device, which must not happen later, while a CUDA graph is captured
@cache
def first_local(expert_map):
    """Return the global id of this rank's first expert, None where its experts are not in a row.

    expert_map: [E] int32, global id -> number of this rank's expert, or -1; one tensor for all
    calls of a layer.
    """
    numbers = expert_map.tolist()
    first = numbers.index(0)
    local_experts = max(numbers) + 1

    before = [-1] * first
    after = [-1] * (len(numbers) - first - local_experts)
    in_a_row = before + list(range(local_experts)) + after
    return first if numbers == in_a_row else None


def share_storage(output, workspace):
    """Return whether both tensors, of which the second may be None, lie in one allocation."""
    if workspace is None:
        return False
    return workspace.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()


def refuse(**options):
    """Raise ValueError for an option that asks for more than this package does."""
    for name, value in options.items():
        if value:
            reason = f"{NAME} gives the weighted sum over experts, no more"
            raise ValueError(f"{name}: got {value!r}, want none: {reason}")


def check(moe, quant_config):
    """Raise ValueError where a layer is not what this package is compiled for.

    Args:
        moe: FusedMoEConfig.
        quant_config: Fp8Config.
    """
    block = quant_config.weight_block_size
    if list(block or []) != [128, 128]:
        raise ValueError(f"weight_block_size: got {block}, want [128, 128]")

    step_limit = STEP_LIMIT if moe.activation == MoEActivation.SWIGLUSTEP else 0.0
    check_number(moe, "swiglu_limit", step_limit, problem.SWIGLU_LIMIT)
    check_number(moe, "swiglu_alpha", 1.0, problem.SWIGLU_ALPHA)
    check_number(moe, "swiglu_beta", 0.0, problem.SWIGLU_UP_OFFSET)
    refuse(has_bias=moe.has_bias, is_lora_enabled=moe.is_lora_enabled)

    sizes = {
        "num_local_experts": moe.num_local_experts,
        "top_k": moe.experts_per_token,
        "hidden_size": moe.hidden_dim,
        "intermediate_size": moe.intermediate_size_per_partition,
    }
    hint = ""
    if moe.intermediate_size_per_partition != moe.intermediate_size:
        hint = "experts cannot be split: set --enable-expert-parallel; "
    model = get_current_vllm_config().model_config.model
    ranks = moe.num_experts // moe.num_local_experts
    check_sizes(sizes, model, ranks, hint)


def check_number(moe, name, unset, want):
    """Raise ValueError where a number of the layer's config, `unset` if it has none, is another."""
    value = getattr(moe, name, None)
    got = unset if value is None else value
    if got != want:
        raise ValueError(f"{name}: got {got}, want {want}, for which {NAME} is compiled")

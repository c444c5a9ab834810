"""**Not run** inside vLLM: this package as the experts of its FP8 models. Read from vLLM 0.25.0 and 0.33.0.

Name `register` as an entry point of the group vllm.general_plugins. It replaces the quantisation config "fp8" by one
that differs in the MoE layers only. docs/engines.md has the lines, and what is not supported.
"""

from . import SIZES, run_bf16

NAME = __package__.rpartition(".")[2]


def register():
    """Compute the experts of FP8 checkpoints by this package, in this process. Returns the quantisation config.

    Raises:
        ImportError: this vLLM has no such classes.
    """
    import torch
    import vllm.model_executor.layers.fused_moe.modular_kernel as mk
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend
    from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config, Fp8MoEMethod
    from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8Dynamic128Sym, kFp8Static128BlockSym

    class PackedExperts(mk.FusedMoEExpertsModular):
        """Tokens in bf16 and the router's choice in, the weighted sum over this rank's experts out."""

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
            return activation == MoEActivation.SILU

        @staticmethod
        def _supports_parallel_config(moe_parallel_config):
            return not moe_parallel_config.use_all2all_kernels or moe_parallel_config.use_ag_rs_all2all_kernels

        def finalize_weight_and_reduce_impl(self):
            return TopKWeightAndReduceNoOP()

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
            if apply_router_weight_on_input or getattr(self, "post_gemm2_hook", None) is not None:
                raise ValueError(f"{NAME} weighs and sums the results: apply_router_weight_on_input or a hook is set")
            if expert_map is not None:  # global id -> number of this rank's expert, or -1
                topk_ids = torch.where(topk_ids < 0, -1, expert_map[topk_ids.clamp(min=0)])
            run_bf16(
                hidden_states.contiguous(),
                topk_ids.to(torch.int32),
                topk_weights.float(),
                w1,
                self.w1_scale,
                w2,
                self.w2_scale,
                0,
                output,
            )

    class PackedMoEMethod(Fp8MoEMethod):
        """vLLM's own for FP8, with weights left as they are loaded and other experts."""

        def __init__(self, quant_config, layer):
            super().__init__(quant_config, layer)
            check(self.moe, quant_config)
            keys = kFp8Static128BlockSym, kFp8Dynamic128Sym
            standard = mk.FusedMoEActivationFormat.Standard
            supported, reason = PackedExperts.is_supported_config(PackedExperts, self.moe, *keys, standard)
            if not supported:
                raise ValueError(f"{NAME}: {reason}")
            # of its backends TRITON is the one that changes neither weights nor scales
            self.fp8_backend, self.experts_cls = Fp8MoeBackend.TRITON, PackedExperts

    @register_quantization_config("fp8")
    class PackedFp8Config(Fp8Config):
        def get_quant_method(self, layer, prefix):
            method = super().get_quant_method(layer, prefix)
            return PackedMoEMethod(self, layer) if type(method) is Fp8MoEMethod else method

    return PackedFp8Config


def check(moe, quant_config):
    """Raise ValueError where a layer (FusedMoEConfig, Fp8Config) is not what this package is compiled for."""
    if list(quant_config.weight_block_size or []) != [128, 128]:
        raise ValueError(f"weight_block_size: got {quant_config.weight_block_size}, want [128, 128]")
    for key in ("swiglu_limit", "swiglu_alpha", "swiglu_beta"):
        if (value := getattr(moe, key, None)) is not None:
            raise ValueError(f"{key}: got {value}, want None: {NAME} computes silu(gate) * up")
    if moe.has_bias:
        raise ValueError("has_bias: got True, want experts without bias")
    got = {
        "num_local_experts": moe.num_local_experts,
        "top_k": moe.experts_per_token,
        "hidden_size": moe.hidden_dim,
        "intermediate_size": moe.intermediate_size_per_partition,
    }
    if got != SIZES:
        hint = "set --enable-expert-parallel, as experts cannot be split; or pack another definition"
        raise ValueError(f"sizes: got {got}, want {SIZES}: {hint}")

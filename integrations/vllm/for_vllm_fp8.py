"""for_vllm_fp8: subclasses of vLLM's classes, for models whose experts are in FP8.

for_vllm.py registers PackedFp8Config. It makes a PackedMoEMethod for each MoE layer, which makes
PackedFp8Experts, which call run_bf16. The classes are at module level because vLLM pickles a config
for the processes that it spawns.
"""

# pyright: reportMissingImports=false
# vLLM is installed where a package is used, not here.

from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend
from vllm.model_executor.layers.quantization.fp8 import Fp8Config, Fp8MoEMethod
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    kFp8Dynamic128Sym,
    kFp8Static128BlockSym,
)

from integrations import run_bf16
from integrations.for_engines import ACTIVE, NAME, SUMS
from integrations.vllm.for_vllm_checks import check_layer, check_supported, refuse
from integrations.vllm.for_vllm_experts import PackedExperts
from integrations.vllm.for_vllm_sum import check_can_sum, is_asked_for, summing_kernel

# vLLM prints only the lines of loggers below its own name
logger = init_logger(f"vllm.{NAME}")


class PackedFp8Experts(PackedExperts):
    """PackedExperts that vLLM calls with tokens in bf16."""

    run = staticmethod(run_bf16)

    @staticmethod
    def _supports_quant_scheme(weight_key, activation_key):
        return (weight_key, activation_key) == (
            kFp8Static128BlockSym,
            kFp8Dynamic128Sym,
        )

    @property
    def expects_unquantized_inputs(self):
        return True

    def layer(self, hidden_states, scale, *arguments):
        self.run(hidden_states, *arguments)


class PackedMoEMethod(Fp8MoEMethod):
    """vLLM's method for FP8, but with weights left as they are loaded, and PackedFp8Experts."""

    def __init__(self, quant_config, layer):
        # also logs a backend of vLLM's, which is not used
        super().__init__(quant_config, layer)
        block = quant_config.weight_block_size
        if list(block or []) != [128, 128]:
            raise ValueError(f"weight_block_size: got {block}, want [128, 128]")

        check_layer(self.moe)
        refuse(
            apply_router_weight_on_input=getattr(
                layer, "apply_router_weight_on_input", False
            )
        )
        check_supported(
            PackedFp8Experts, self.moe, kFp8Static128BlockSym, kFp8Dynamic128Sym
        )
        self.sums_over_ranks = is_asked_for()
        if self.sums_over_ranks:
            check_can_sum(self.moe)

        # TRITON is the one backend of vLLM's that changes neither weights nor scales after loading
        self.fp8_backend = Fp8MoeBackend.TRITON
        self.experts_cls = PackedFp8Experts
        logger.info_once(ACTIVE)

    def process_weights_after_loading(self, layer):
        super().process_weights_after_loading(layer)
        if self.sums_over_ranks:
            self.moe_kernel = summing_kernel(self.moe_kernel.fused_experts)
            logger.info_once(SUMS)


class PackedFp8Config(Fp8Config):
    """vLLM's config of FP8 checkpoints, but with PackedMoEMethod for MoE layers."""

    def get_quant_method(self, layer, prefix):
        method = super().get_quant_method(layer, prefix)
        return PackedMoEMethod(self, layer) if type(method) is Fp8MoEMethod else method

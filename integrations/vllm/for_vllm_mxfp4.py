"""for_vllm_mxfp4: subclasses of vLLM's classes, for DeepSeek-V4, whose experts are in MXFP4.

for_vllm.py registers PackedDeepseekV4Config. It makes a PackedMxfp4Method for each MoE layer, which
makes PackedMxfp4Experts, which call run.

vLLM quantises the tokens to FP8, with a scale for each 128 columns, as it does for its own FP8 x
MXFP4 kernel, which is for Blackwell. (Marlin, by which vLLM computes MXFP4 experts on Hopper, takes
tokens in bf16.)
"""

# pyright: reportMissingImports=false
# vLLM is installed where a package is used, not here.

from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, RoutedExperts
from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import (
    Mxfp4MoeBackend,
    make_mxfp4_moe_kernel,
)
from vllm.model_executor.layers.quantization.mxfp4 import Mxfp4MoEMethod
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    is_layer_skipped,
    kFp8Dynamic128Sym,
    kMxfp4Static,
)
from vllm.models.deepseek_v4 import DeepseekV4FP8Config

from integrations import run
from integrations.for_engines import ACTIVE, NAME
from integrations.vllm.for_vllm_checks import check_layer, check_supported, refuse
from integrations.vllm.for_vllm_experts import PackedExperts

# vLLM prints only the lines of loggers below its own name
logger = init_logger(f"vllm.{NAME}")


class PackedMxfp4Experts(PackedExperts):
    """PackedExperts that vLLM calls with tokens in FP8 and their scales."""

    @property
    def expects_unquantized_inputs(self):
        return False

    @staticmethod
    def _supports_quant_scheme(weight_key, activation_key):
        return (weight_key, activation_key) == (kMxfp4Static, kFp8Dynamic128Sym)

    def layer(self, hidden_states, scale, *arguments):
        run(hidden_states, scale.contiguous(), *arguments)


class PackedMxfp4Method(Mxfp4MoEMethod):
    """vLLM's method for MXFP4, but with weights left as they are loaded, and PackedMxfp4Experts."""

    def __init__(self, layer):
        # Mxfp4MoEMethod.__init__ would choose a backend, and raise where vLLM has none
        FusedMoEMethodBase.__init__(self, layer.moe_config)
        check_layer(self.moe)
        refuse(
            apply_router_weight_on_input=getattr(
                layer, "apply_router_weight_on_input", False
            )
        )
        check_supported(PackedMxfp4Experts, self.moe, kMxfp4Static, kFp8Dynamic128Sym)

        # with this backend vLLM quantises tokens to FP8 and does not pad sizes
        self.mxfp4_backend = Mxfp4MoeBackend.DEEPGEMM_MXFP4
        self.experts_cls = PackedMxfp4Experts
        self.activation_key = None  # newer releases read it
        logger.info_once(ACTIVE)

    def process_weights_after_loading(self, layer):
        self.moe_quant_config = self.get_fused_moe_quant_config(layer)
        self.moe_kernel = make_mxfp4_moe_kernel(
            moe_quant_config=self.moe_quant_config,
            moe_config=self.moe,
            experts_cls=self.experts_cls,
            mxfp4_backend=self.mxfp4_backend,
            routing_tables=layer._expert_routing_tables(),
        )


class PackedDeepseekV4Config(DeepseekV4FP8Config):
    """vLLM's config of DeepSeek-V4, but with PackedMxfp4Method for MoE layers in MXFP4."""

    def get_quant_method(self, layer, prefix):
        if self.is_mxfp4(layer, prefix):
            return PackedMxfp4Method(layer)
        return super().get_quant_method(layer, prefix)

    def is_mxfp4(self, layer, prefix):
        """Return whether a layer has MXFP4 experts, and not FP8, NVFP4 or bf16 ones."""
        if not isinstance(layer, RoutedExperts):
            return False
        if self.expert_dtype != "fp4" or self.moe_quant_algo == "NVFP4":
            return False
        return not is_layer_skipped(
            prefix, self.ignored_layers, self.packed_modules_mapping
        )

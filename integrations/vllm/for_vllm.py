"""for_vllm: vLLM's plugin, by which this package computes the experts of a model's MoE layers.

A user names `register` as an entry point of the group vllm.general_plugins; integrations/README.md
has the lines to write. `register` replaces one of vLLM's quantisation configs by a subclass that
differs in the MoE layers only: "fp8", or DeepSeek-V4's if this package is for MXFP4 experts.
integrations/README.md also says what is not supported.
"""

# pyright: reportMissingImports=false
# vLLM is installed where a package is used, not here.

from integrations.for_engines import MXFP4


def register():
    """Register the quantisation config in this process, and return its class.

    vLLM ignores a plugin that it cannot import, and stops where the plugin's function raises. It
    should stop, so the imports that may fail are inside.

    Raises:
        ImportError: this version of vLLM lacks a class, or the package cannot run here.
    """
    from vllm.model_executor.layers.quantization import register_quantization_config

    if MXFP4:
        from integrations.vllm.for_vllm_mxfp4 import PackedDeepseekV4Config

        return register_quantization_config("deepseek_v4_fp8")(PackedDeepseekV4Config)

    from integrations.vllm.for_vllm_fp8 import PackedFp8Config

    return register_quantization_config("fp8")(PackedFp8Config)

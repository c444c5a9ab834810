"""for_vllm: this package as the experts of vLLM's models.

Name `register` as an entry point of vllm.general_plugins. It replaces the quantisation config
"fp8", or DeepSeek-V4's where this package is of MXFP4 experts, by one that differs in the MoE
layers only. integrations/README.md has the lines, and what is not supported.
"""

# pyright: reportMissingImports=false
# vLLM is installed where a package is used, not here.

from integrations.for_engines import MXFP4


def register():
    """Compute the experts of such checkpoints by this package, in this process.

    Return the quantisation config's class.

    vLLM goes on by itself where a plugin cannot be imported, and stops where its function raises:
    hence imports inside.

    Raises:
        ImportError: this vLLM has no such classes, or the package cannot run here.
    """
    from vllm.model_executor.layers.quantization import register_quantization_config

    if MXFP4:
        from integrations.vllm.for_vllm_mxfp4 import PackedDeepseekV4Config

        return register_quantization_config("deepseek_v4_fp8")(PackedDeepseekV4Config)

    from integrations.vllm.for_vllm_fp8 import PackedFp8Config

    return register_quantization_config("fp8")(PackedFp8Config)

"""source: which of FlashInfer's sources MXFP4 weights with bf16 activations need."""

RUNNER = "moe_gemm_kernels_bf16_fp4.cu"


def is_needed(source):
    """Return whether a source of the full module (a path) takes part.

    Generated kernels of mixed types say their types in the text alone.
    """
    if source.name.startswith("moe_gemm_kernels_"):
        return source.name == RUNNER
    if not source.name.endswith(".generated.cu"):
        return True
    if "_Mixed_" not in source.name:
        return False

    text = source.read_text(encoding="utf-8")
    other_types = ("e4m3", "uint4b")
    return "bfloat16" in text and not any(name in text for name in other_types)

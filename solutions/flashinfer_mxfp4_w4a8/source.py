"""source: which of FlashInfer's sources MXFP4 weights with FP8 activations need."""

RUNNER = "moe_gemm_kernels_fp8_fp4.cu"


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
    return "bfloat16" in text and "e4m3" in text and "uint4b" not in text

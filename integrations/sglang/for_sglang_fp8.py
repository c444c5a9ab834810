"""for_sglang_fp8: compute a layer of SGLang's with FP8 experts. for_sglang.py calls `compute`."""

from integrations import run_bf16


def compute(x, topk_ids, topk_weights, quant_info, output):
    """Write the layer's result for tokens x [T, H] bfloat16 into output [T, H] bfloat16.

    Args:
        topk_ids: [T, top_k] int32, numbers of this rank's experts, or -1.
        topk_weights: [T, top_k] float32.
        quant_info: SGLang's DeepGemmMoeQuantInfo, with the weights and their scales.
    """
    run_bf16(
        x,
        topk_ids,
        topk_weights,
        quant_info.w13_weight,
        quant_info.w13_scale,
        quant_info.w2_weight,
        quant_info.w2_scale,
        0,
        output,
    )

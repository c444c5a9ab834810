"""for_sglang_fp8: a layer of experts in FP8, by run_bf16."""

from integrations import run_bf16


def compute(x, topk_ids, topk_weights, quant_info, output):
    """Compute the layer of tokens x, [T, H] bf16, into output."""
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

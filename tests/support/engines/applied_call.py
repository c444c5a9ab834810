"""Two calls of FlashInfer's MoE function where its Trace Apply is on, without a GPU.

python applied_call.py prints as JSON the share of the first output that is right, the error of a
call with a clamp, which the layer "small" has not, and what Trace Apply has counted.
"""

import json

import layer_inputs
import torch
from flashinfer.fused_moe import trtllm_fp8_block_scale_moe
from flashinfer.trace_apply import stats_snapshot
from moebench.judging.tolerances import matched_ratios
from moebench.operators import catalogue

LAYER_KEY = "small"
SIZES = catalogue.layer_sizes()[LAYER_KEY]


def call(inputs, clamp=None):
    return trtllm_fp8_block_scale_moe(
        **inputs,
        num_experts=SIZES["num_experts"],
        top_k=SIZES["top_k"],
        n_group=SIZES["num_groups"],
        topk_group=SIZES["kept_groups"],
        intermediate_size=SIZES["intermediate_size"],
        local_num_experts=SIZES["num_local_experts"],
        routing_method_type=2,
        gemm1_clamp_limit=clamp,
    )


def error_of(inputs, clamp):
    try:
        call(inputs, clamp)
    except Exception as error:
        return type(error).__name__
    return None


def main():
    # FlashInfer asks whether a graph is being captured; torch without CUDA cannot answer
    torch.cuda.is_current_stream_capturing = lambda: False
    inputs = layer_inputs.arguments(LAYER_KEY, 5, "cpu")
    inputs.pop("output")
    expected = layer_inputs.reference(LAYER_KEY).run(**inputs)

    relaxed = matched_ratios(call(inputs), expected)["relaxed"]
    error = error_of(inputs, clamp=torch.ones(SIZES["num_local_experts"]))
    (counts,) = stats_snapshot().values()
    print(json.dumps({"relaxed": relaxed, "error": error, "counts": counts}))


if __name__ == "__main__":
    main()

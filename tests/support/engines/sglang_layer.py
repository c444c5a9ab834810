"""One MoE layer of SGLang's own classes on one of several ranks, without a GPU.

python sglang_layer.py REQUEST ANSWER RANK, with SGLang in reach: test_sglang_on_cpu.py writes the
one and reads the other. Ranks that are here add up their outputs by gloo, as SGLang's models do
behind the layer.
"""

import logging
import sys

import torch
import torch.distributed as dist
from moebench.core import interpreter  # noqa: F401  put right, before SGLang imports Triton
from quantised import quantise_tokens

try:
    import torchvision  # noqa: F401
except RuntimeError:
    # its operators are another torch's; SGLang wants this one's name alone
    torch.library.define(
        "torchvision::nms", "(Tensor boxes, Tensor scores, float iou) -> Tensor"
    )

from sglang.kernels.ops.quantization import fp8_kernel
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.moe.moe_runner.base import FusedOpPool
from sglang.srt.layers.moe.token_dispatcher import standard
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_context, get_flags, get_parallel


def new_layer(request, **changes):
    is_mxfp4 = request["is_mxfp4"]
    config = Fp8Config(True, weight_block_size=[128, 128], is_fp4_experts=is_mxfp4)
    return FusedMoE(layer_id=0, quant_config=config, **request["layer"] | changes)


def load_weights(layer, request):
    """Load experts as from a checkpoint, of which SGLang takes this rank's part: w1 is gate, w3
    up.
    """
    first = request["first_expert"]
    for ours, theirs in (("", ""), ("_scale", "_scale_inv")):
        w13 = getattr(layer, f"w13_weight{theirs}")
        w2 = getattr(layer, f"w2_weight{theirs}")
        name = f"weight{theirs}"
        gemm1 = request[f"gemm1_weights{ours}"]
        gemm2 = request[f"gemm2_weights{ours}"]
        for expert in range(len(gemm1)):
            gate, up = gemm1[expert].chunk(2)
            layer.weight_loader(w13, gate, name, "w1", first + expert)
            layer.weight_loader(w13, up, name, "w3", first + expert)
            layer.weight_loader(w2, gemm2[expert], name, "w2", first + expert)


def output_of(layer, request, num_tokens):
    weights = request["topk_weights"][:num_tokens]
    ids = request["topk_ids"][:num_tokens]
    routed = StandardTopKOutput(weights, ids, None)
    dispatched = layer.dispatcher.dispatch(request["x"][:num_tokens], routed)
    output = layer.dispatcher.combine(layer.run_moe_core(dispatched))
    if dist.is_initialized():
        dist.all_reduce(output)
    return output


def refusal_of(request, changes):
    try:
        output_of(new_layer(request, **changes), request, 1)
    except ValueError as error:
        return str(error)
    return "served"


def answer(request, ranks):
    """Return the output for each number of tokens, a refusal for each fault, and the name of the
    function that computes. ranks: as SGLang calls their numbers.
    """
    answers = {}
    with get_parallel().override(**ranks):
        for num_tokens in request["tokens"]:
            layer = new_layer(request)
            load_weights(layer, request)
            answers[num_tokens] = output_of(layer, request, num_tokens)
        for name, changes in request["faults"].items():
            answers[name] = refusal_of(request, changes)

    function = FusedOpPool.get_fused_func("none", "deep_gemm")
    answers["function"] = f"{function.__module__}.{function.__name__}"
    return answers


def main():
    request_file, answer_file, rank = sys.argv[1:]
    request = torch.load(request_file)
    if request["rendezvous"]:
        dist.init_process_group(
            "gloo", request["rendezvous"], rank=int(rank), world_size=2
        )
    ranks = request["ranks"] | {request["rank_of"]: int(rank)}

    fp8_kernel.sglang_per_token_group_quant_fp8 = quantise_tokens
    standard.get_device = lambda: "cpu"  # a GPU's, or an error
    get_context().override_server_args(model_path=request["model"]).install()
    # --moe-runner-backend deep_gemm
    get_flags().moe.runner_backend = MoeRunnerBackend.DEEP_GEMM
    logging.basicConfig(level=logging.INFO)
    load_plugins()
    torch.save(answer(request, ranks), answer_file)


if __name__ == "__main__":
    main()

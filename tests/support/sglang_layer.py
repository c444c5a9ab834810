"""One FP8 layer of SGLang's own classes, as of one of eight ranks, without a GPU.

python sglang_layer.py GIVEN WRITTEN, with SGLang in reach: test_sglang_on_cpu.py writes the one and
reads the other.
"""

import logging
import sys

import torch
from moebench.core import interpreter  # noqa: F401  put right, before SGLang imports Triton

try:
    import torchvision  # noqa: F401
except RuntimeError:  # its operators are another torch's; SGLang wants this one's name alone
    torch.library.define("torchvision::nms", "(Tensor boxes, Tensor scores, float iou) -> Tensor")

from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.moe.moe_runner.base import FusedOpPool
from sglang.srt.layers.moe.token_dispatcher import standard
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_context, get_flags, get_parallel

given = torch.load(sys.argv[1])
standard.get_device = lambda: "cpu"  # a GPU's, or an error
get_context().override_server_args(model_path=given["model"]).install()
get_flags().moe.runner_backend = MoeRunnerBackend.DEEP_GEMM  # --moe-runner-backend deep_gemm
ranks = {"tp_size": 8, "attn_tp_size": 8, "moe_ep_size": 8, "moe_tp_size": 1}


def layer(**changes):
    """With its rank's experts, loaded as from a checkpoint: w1 is gate, w3 up."""
    made = FusedMoE(
        layer_id=0,
        quant_config=Fp8Config(True, weight_block_size=[128, 128]),
        **given["layer"] | changes,
    )
    for ours, theirs in () if changes else (("", ""), ("_scale", "_scale_inv")):
        every = zip(given[f"gemm1_weights{ours}"], given[f"gemm2_weights{ours}"], strict=True)
        for expert, (w13, w2) in enumerate(every, given["local_expert_offset"]):
            for part, weight in zip(("w1", "w3", "w2"), (*w13.chunk(2), w2), strict=True):
                parameter = getattr(made, f"{'w2' if part == 'w2' else 'w13'}_weight{theirs}")
                made.weight_loader(parameter, weight, f"weight{theirs}", part, expert)
    return made


def output(of, tokens):
    routed = StandardTopKOutput(given["topk_weights"][:tokens], given["topk_ids"][:tokens], None)
    return of.dispatcher.combine(
        of.run_moe_core(of.dispatcher.dispatch(given["x"][:tokens], routed))
    )


def refusal(changes):
    try:
        return f"served: {output(layer(**changes), 1)}"
    except ValueError as error:
        return str(error)


logging.basicConfig(level=logging.INFO)
load_plugins()
with get_parallel().override(moe_ep_rank=given["rank"], moe_tp_rank=0, **ranks):
    written = {tokens: output(layer(), tokens) for tokens in given["tokens"]}
    written |= {name: refusal(changes) for name, changes in given["faults"].items()}
function = FusedOpPool.get_fused_func("none", "deep_gemm")
torch.save(written | {"function": f"{function.__module__}.{function.__name__}"}, sys.argv[2])

"""flashinfer_mono_moe: FlashInfer's mono_moe, which is the layer in one launch for up to 8 tokens.

mono_moe is compiled for one model's sizes. Our kernel converts its inputs first (hand_over.py).
mono_moe quantises the bf16 tokens again, to the same FP8 bytes that the caller passed wherever the
largest value of a block is 448, which quantisers scale it to.
"""

import flashinfer
import torch
from flashinfer import fused_moe

from ..common.host.arguments import RENORM_ROUTING, checked
from ..common.host.launch import launch_quickly
from ..common.host.problem import TOP_K
from .hand_over import MOST_TOKENS, hand_over, hand_over_kernel

if torch.cuda.get_device_capability() != (9, 0):
    major, minor = torch.cuda.get_device_capability()
    needs = "its kernel is for SM90"
    raise RuntimeError(f"flashinfer_mono_moe: {needs}; this GPU is sm_{major}{minor}")
if not hasattr(fused_moe, "mono_moe"):
    version = flashinfer.__version__
    raise ImportError(
        f"flashinfer_mono_moe: FlashInfer {version} has no mono_moe, want 0.7.2.post1"
    )

from .scratchpad import scratchpad, spare  # noqa: E402  an older FlashInfer has not what it imports

# compiles the kernel here, when the solution is built, not when it is first called
spare(torch.cuda.current_device())
launch_quickly(hand_over_kernel)


@checked(RENORM_ROUTING)
def run(args):
    """Write `output` [T, H] bf16: the FP8 layer with renorm routing, all experts on one GPU.

    Arguments are RENORM_ROUTING's (common/host/arguments.py).

    Raises:
        ValueError: an argument is not what the definition says, or there are more than MOST_TOKENS
            tokens.
        RuntimeError: as `scratchpad`, or FlashInfer refuses the call.
    """
    logits = args.routing_logits
    num_tokens = len(logits)
    if num_tokens > MOST_TOKENS:
        want = f"at most {MOST_TOKENS}, as mono_moe takes"
        raise ValueError(f"routing_logits: got {num_tokens} tokens, want {want}")
    if num_tokens == 0:
        return

    with torch.cuda.device_of(logits):
        x, w1, w1_scale = hand_over(
            logits,
            args.hidden_states,
            args.hidden_states_scale,
            args.gemm1_weights,
            args.gemm1_weights_scale,
            TOP_K,
        )
        fused_moe.mono_moe(
            x,
            logits,
            w1,
            w1_scale,
            args.gemm2_weights,
            args.gemm2_weights_scale,
            top_k=TOP_K,
            scoring_func="softmax",
            renormalize=True,
            out=args.output,
            scratchpad=scratchpad(logits.device.index),
            interleave_up=False,
            skip_check=True,
        )

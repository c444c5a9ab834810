"""flashinfer_mxfp4: the layer with MXFP4 experts by FlashInfer's cutlass_fused_moe, on Hopper.

That function takes bf16 activations, to which our kernel converts the FP8 ones
(common/triton/rows/dequantise.py), and weights in an order of its own, to which each call converts
them (prepare.py). A server would convert its weights once. flashinfer_mxfp4_w4a8 replaces
prepare.py and source.py.
"""

import inspect

import torch
from flashinfer import autotune
from flashinfer.fused_moe import cutlass_fused_moe

from ..common.host.arguments import checked
from ..common.host.mxfp4_arguments import ROUTED_MXFP4, as_int8
from ..common.triton.rows.dequantise import dequantise
from .build import calling, load_runner
from .keywords import check_signature, keywords, local_routing
from .prepare import FLAGS
from .prepare import prepare as prepare_weights

if torch.cuda.get_device_capability() != (9, 0):
    major, minor = torch.cuda.get_device_capability()
    needs = "its kernels are for SM90"
    raise RuntimeError(f"flashinfer_mxfp4: {needs}; this GPU is sm_{major}{minor}")
check_signature(inspect.signature(cutlass_fused_moe).parameters, FLAGS)
# compiled here, when the solution is built, not when it is first called
_MODULE = load_runner()

# whether FlashInfer has tuned in this process; it keeps the fastest tiles for numbers of tokens
_tuned = False


@as_int8
@checked(ROUTED_MXFP4)
def run_mxfp4(args):
    """Write `output` [T, H] bf16: the layer with MXFP4 experts, of one expert-parallel rank.

    Arguments are ROUTED_MXFP4's (common/host/argument_table.py); the caller passes experts and
    their weights.

    Raises:
        ValueError: an argument is not what the definition says.
        RuntimeError: FlashInfer refuses the call.
    """
    if len(args.hidden_states) == 0:
        return
    with torch.cuda.device_of(args.hidden_states):
        weights = (
            args.gemm1_weights,
            args.gemm1_weights_scale,
            args.gemm2_weights,
            args.gemm2_weights_scale,
        )
        layer(args, prepare(weights))


@calling(_MODULE)
def prepare(weights):
    """Return the weights in the order of FlashInfer's kernels, as prepare.py does."""
    return prepare_weights(weights)


@calling(_MODULE)
def layer(args, prepared):
    """Write args.output [T, H] bf16.

    args: the call's arguments, as `check_arguments` returns them. prepared: the weights, as
    `prepare` returns them.
    """
    global _tuned
    num_local_experts = len(prepared.gemm1)
    first_expert = int(args.local_expert_offset)
    experts, weights = local_routing(
        args.topk_ids, args.topk_weights, first_expert, num_local_experts
    )
    x = dequantise(args.hidden_states, args.hidden_states_scale)
    values = keywords(experts, weights, x, prepared, FLAGS, args.output)

    if not _tuned:
        with autotune(True):
            cutlass_fused_moe(**values)
        _tuned = True
    cutlass_fused_moe(**values)

"""flashinfer_mxfp4: FlashInfer's cutlass_fused_moe with MXFP4 weights, on Hopper.

Ours are the way to bf16 (common/triton/rows/dequantise.py) and, in each call, the order of the
weights (prepare.py), which a server changes once.
"""

import inspect

import torch
from flashinfer import autotune
from flashinfer.fused_moe import cutlass_fused_moe

from ..common.host.arguments import checked
from ..common.host.mxfp4_arguments import ROUTED_MXFP4, as_int8
from ..common.triton.rows.dequantise import dequantise
from .build import load_runner
from .keywords import check_signature, keywords, local_routing
from .prepare import FLAGS, prepare

if torch.cuda.get_device_capability() != (9, 0):
    major, minor = torch.cuda.get_device_capability()
    needs = "its kernels are for SM90"
    raise RuntimeError(f"flashinfer_mxfp4: {needs}; this GPU is sm_{major}{minor}")
check_signature(inspect.signature(cutlass_fused_moe).parameters, FLAGS)
load_runner()  # compiled here, when the solution is built, not when it is first called

_tuned = False  # in this process: FlashInfer keeps the fastest tiles by numbers of tokens


@as_int8
@checked(ROUTED_MXFP4)
def run_mxfp4(given):
    """Write `output` [T, H] bf16: the layer with MXFP4 experts, of one rank; top-k is given.

    Arguments are ROUTED_MXFP4's (common/host/mxfp4_arguments.py).

    Raises:
        ValueError: an argument is not what the definition says.
        RuntimeError: FlashInfer refuses the call.
    """
    if len(given.hidden_states) == 0:
        return
    with torch.cuda.device_of(given.hidden_states):
        weights = (
            given.gemm1_weights,
            given.gemm1_weights_scale,
            given.gemm2_weights,
            given.gemm2_weights_scale,
        )
        layer(given, prepare(weights))


def layer(given, prepared):
    """Write `output` of the layer with weights that are prepared. given: as in `run_mxfp4`."""
    global _tuned
    num_local_experts = len(prepared.gemm1)
    first_expert = int(given.local_expert_offset)
    experts, weights = local_routing(
        given.topk_ids, given.topk_weights, first_expert, num_local_experts
    )
    x = dequantise(given.hidden_states, given.hidden_states_scale)
    values = keywords(experts, weights, x, prepared, FLAGS, given.output)

    if not _tuned:
        with autotune(True):
            cutlass_fused_moe(**values)
        _tuned = True
    cutlass_fused_moe(**values)

"""flashinfer_trtllm: the FP8 layer by TensorRT-LLM's kernels for SM100, one call of FlashInfer.

We have not run it, for lack of such a GPU. Tests check that the call fits FlashInfer's signature
and that layouts and dtypes of its arguments are those that FlashInfer documents (keywords.py).
"""

import inspect

import torch
from flashinfer.fused_moe import trtllm_fp8_block_scale_moe
from flashinfer.fused_moe.core import get_trtllm_moe_sm100_module

from ..common.host import problem
from ..common.host.arguments import DS_ROUTING, RENORM_ROUTING, checked
from .keywords import check_signature, keywords

if torch.cuda.get_device_capability()[0] != 10:
    major, minor = torch.cuda.get_device_capability()
    needs = "its kernels are for SM100 and SM103"
    raise RuntimeError(f"flashinfer_trtllm: {needs}; this GPU is sm_{major}{minor}")
_PARAMETERS = inspect.signature(trtllm_fp8_block_scale_moe).parameters
check_signature(_PARAMETERS)
# compiled here, when the solution is built, not when it is first called
get_trtllm_moe_sm100_module()


@checked(DS_ROUTING)
def run(args):
    """Write `output` [T, H] bf16: DeepSeek-V3's FP8 layer, of one expert-parallel rank.

    Arguments are DS_ROUTING's (common/host/arguments.py).

    Raises:
        ValueError: an argument is not what the definition says.
        RuntimeError: FlashInfer refuses the call, or cannot load its kernels.
    """
    layer(args)


@checked(RENORM_ROUTING)
def run_renorm(args):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    layer(args)


def layer(args):
    """Call FlashInfer. args: the layer's arguments, as `check_arguments` returns them."""
    output = args.output
    if len(output) == 0:
        return

    with torch.cuda.device_of(output):
        result = trtllm_fp8_block_scale_moe(**keywords(_PARAMETERS, problem, args))
        if isinstance(result, (list, tuple)):  # announced for 0.8
            result = result[0]
        # in versions that have no parameter `output`, or ignore it
        if result.data_ptr() != output.data_ptr():
            output.copy_(result)

"""flashinfer_trtllm: TensorRT-LLM's kernels for SM100, the whole layer in one call of FlashInfer.

Not run by us on the hardware that it needs: what a test holds is that the call fits FlashInfer's
signature and that the layouts and dtypes handed over are the documented ones (keywords.py).
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
    raise RuntimeError(
        f"flashinfer_trtllm: its kernels are for SM100 and SM103; this GPU is sm_{major}{minor}"
    )
_PARAMETERS = inspect.signature(trtllm_fp8_block_scale_moe).parameters
check_signature(_PARAMETERS)
# compiled here, when the solution is built, not when it is first called
get_trtllm_moe_sm100_module()


@checked(DS_ROUTING)
def run(given):
    """DeepSeek-V3 FP8 block-scale MoE layer of one expert-parallel rank; writes `output` [T, H]
    bf16.

    Arguments are DS_ROUTING's (common/host/arguments.py).

    Raises:
        ValueError: an argument is not what the definition says.
        RuntimeError: FlashInfer refuses the call, or cannot load its kernels.
    """
    layer(given)


@checked(RENORM_ROUTING)
def run_renorm(given):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    layer(given)


def layer(given):
    """Call the library."""
    output = given.output
    if len(output) == 0:
        return
    with torch.cuda.device_of(output):
        result = trtllm_fp8_block_scale_moe(**keywords(_PARAMETERS, problem, given))
        result = (
            result[0] if isinstance(result, (list, tuple)) else result
        )  # a list is announced for 0.8
        if (
            result.data_ptr() != output.data_ptr()
        ):  # a version that takes no `output`, or does not heed it
            output.copy_(result)

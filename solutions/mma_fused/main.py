"""mma_fused: the FP8 layer with mma.sync, for every NVIDIA GPU from Ampere to Blackwell.

Up to MOST_TOKENS tokens the whole layer is one CUDA kernel, bound by reading the weights
(one_launch/). For more it is Triton kernels, one for each stage (many_tokens/). README.md describes
the design.
"""

import torch

from ..common.host.arguments import (
    DS_ROUTING,
    RENORM_ROUTING,
    ROUTED,
    ROUTED_BF16,
    check_arguments,
    takes,
)
from ..common.host.mxfp4_arguments import ROUTED_MXFP4, as_int8
from .build import load_kernels
from .many_tokens.many_tokens import (
    many_tokens,
    many_tokens_mxfp4,
    many_tokens_renorm,
    many_tokens_routed,
)

# that the CUDA kernel takes; Config::kMaxTokens in one_launch/config.cuh
MOST_TOKENS = 256
# With MXFP4 experts and up to so many tokens the CUDA kernel is launched several times, for a part
# of the tokens each: on an H200, the Triton kernels take as long at 1024 tokens as nine launches.
MOST_MXFP4_TOKENS = 2048
PER_TOKEN = (
    "hidden_states",
    "hidden_states_scale",
    "topk_ids",
    "topk_weights",
    "output",
)

# compiled on import, when the solution is built, not at its first call
_kernels = load_kernels()


@takes(DS_ROUTING)
def run(arguments):
    """Write `output` [T, H] bf16: DeepSeek-V3's FP8 layer, of one expert-parallel rank.

    Arguments are DS_ROUTING's (common/host/arguments.py). Launches on the current stream and never
    waits for the device.

    Raises:
        ValueError: an argument is not what the definition says; checked before anything is
            launched.
        RuntimeError: CUDA refuses a call.
    """
    _layer(_kernels.run_layer, many_tokens, arguments)


@takes(RENORM_ROUTING)
def run_renorm(arguments):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    _layer(_kernels.run_renorm, many_tokens_renorm, arguments)


@takes(ROUTED)
def run_routed(arguments):
    """As `run`, for routed definitions.

    The caller passes experts and their weights; `gate` rows of gemm1_weights come first; the scales
    of tokens are [T, H / 128].
    """
    _layer(_kernels.run_routed, many_tokens_routed, arguments)


@takes(ROUTED_BF16)
def run_routed_bf16(arguments):
    """As `run_routed`, for hidden_states [T, H] bf16, which a kernel quantises first."""
    _layer(_kernels.run_routed_bf16, _many_tokens_routed_bf16, arguments)


@as_int8
@takes(ROUTED_MXFP4)
def run_mxfp4(arguments):
    """As `run_routed`, for experts in MXFP4: bytes of two E2M1, and an E8M0 scale for each 32 of K.

    Kernels convert the weights to fp16, or to bf16 above MOST_MXFP4_TOKENS tokens, exactly, for any
    scales.
    """
    _layer(_kernels.run_mxfp4, _more_tokens_mxfp4, arguments)


def _more_tokens_mxfp4(*arguments):
    """Launch the layer with MXFP4 experts for more than MOST_TOKENS tokens.

    Up to MOST_MXFP4_TOKENS the CUDA kernel is launched for equal shares of the tokens; above, the
    Triton kernels.
    """
    check_arguments(ROUTED_MXFP4, arguments)
    num_tokens = len(arguments[0])
    if num_tokens > MOST_MXFP4_TOKENS:
        many_tokens_mxfp4(*arguments)
        return

    launches = -(-num_tokens // MOST_TOKENS)
    share = -(-num_tokens // launches)
    share += -share % 4  # rows of all tensors begin at multiples of 16 bytes
    for first in range(0, num_tokens, share):
        part = dict(zip(ROUTED_MXFP4, arguments, strict=True))
        for name in PER_TOKEN:
            part[name] = part[name][first : first + share]
        _kernels.run_mxfp4(*part.values(), 0)


def _many_tokens_routed_bf16(*arguments):
    """As `many_tokens_routed`, for tokens in bf16.

    They are quantised in CUDA, as Triton has no FP8 before sm_89.
    """
    check_arguments(ROUTED_BF16, arguments)

    x, *others = arguments
    num_tokens, hidden = x.shape
    q = torch.empty(num_tokens, hidden, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(
        num_tokens, hidden // 128, dtype=torch.float32, device=x.device
    )
    _kernels.quantise(x, q, scales)
    many_tokens_routed(q, scales, *others)


def _layer(one_launch, many, arguments):
    """Call `many` if there are more than MOST_TOKENS tokens, else `one_launch`.

    The arguments are not checked yet. T is the first one's first size, if it has any.
    """
    first = arguments[0]
    if (
        isinstance(first, torch.Tensor)
        and first.dim() > 0
        and first.shape[0] > MOST_TOKENS
    ):
        many(*arguments)
    else:
        one_launch(*arguments, 0)  # 0: a CTA on each SM

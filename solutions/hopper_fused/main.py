"""hopper_fused: CUDA kernels for Hopper, one launch for few tokens and four or six for many.

With few tokens, reading the weights from memory bounds the layer, so one kernel streams them
(few_tokens/). With more, routing, two grouped GEMMs and the combine are kernels of their own
(many_tokens/). Up to 32 rows per expert h has two FP8 parts, hi and lo, which costs little there;
above, it has `H_SPLIT`. README.md describes the design.
"""

from ..common.host.arguments import (
    DS_ROUTING,
    DS_ROUTING_BF16,
    RENORM_ROUTING,
    RENORM_ROUTING_BF16,
    ROUTED,
    ROUTED_BF16,
    takes,
)
from ..common.host.mxfp4_arguments import ROUTED_MXFP4, as_int8
from .allreduce import Peers, RankMissing, summed  # noqa: F401
from .build import load_kernels
from .h_split import H_SPLIT

_kernels = load_kernels()  # compiled on import, when the solution is built, not at its first call


@takes(DS_ROUTING)
def run(arguments):
    """DeepSeek-V3 FP8 block-scale MoE layer of one expert-parallel rank; writes `output` [T, H]
    bf16.

    Arguments are DS_ROUTING's (common/host/arguments.py). Launches on the current stream and never
    waits for the device.

    Raises:
        ValueError: an argument is not what the definition says, or there are more tokens than
            route_permute's shared memory has room for, 131072 at most; checked before anything is
            launched.
        RuntimeError: CUDA refuses a call.
    """
    _kernels.run_layer(*arguments, H_SPLIT)


@takes(DS_ROUTING_BF16)
def run_bf16(arguments):
    """As `run`, for hidden_states [T, H] bf16 and no scales: few tokens are quantised in the
    layer's one launch.
    """
    _kernels.run_layer_bf16(*arguments, H_SPLIT)


@takes(RENORM_ROUTING)
def run_renorm(arguments):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    _kernels.run_renorm(*arguments, H_SPLIT)


@takes(RENORM_ROUTING_BF16)
def run_renorm_bf16(arguments):
    """As `run_renorm`, for hidden_states in bf16."""
    _kernels.run_renorm_bf16(*arguments, H_SPLIT)


@takes(ROUTED)
def run_routed(arguments):
    """As `run`, for routed definitions: experts and weights are given, gate comes first, scales are
    row-major.
    """
    _kernels.run_routed(*arguments, H_SPLIT)


@takes(ROUTED_BF16)
def run_routed_bf16(arguments):
    """As `run_routed`, for hidden_states in bf16."""
    _kernels.run_routed_bf16(*arguments, H_SPLIT)


# As the functions above, with one argument more, by name: peers, the ranks (allreduce.py) over
# which the output is summed. Each rank has some of the experts, or some of each expert's width.
# Raises RuntimeError, too, where an earlier call has waited for a rank in vain.
run_allreduce = summed("run_layer", DS_ROUTING)
run_allreduce_bf16 = summed("run_layer_bf16", DS_ROUTING_BF16)
run_renorm_allreduce = summed("run_renorm", RENORM_ROUTING)
run_renorm_allreduce_bf16 = summed("run_renorm_bf16", RENORM_ROUTING_BF16)
run_routed_allreduce = summed("run_routed", ROUTED)
run_routed_allreduce_bf16 = summed("run_routed_bf16", ROUTED_BF16)


@as_int8
@takes(ROUTED_MXFP4)
def run_mxfp4(arguments):
    """As `run_routed`, for experts in MXFP4: bytes of two E2M1, and E8M0 scales for each 32 of K.

    Weights are converted to FP8 as they are multiplied, exactly, whatever their scales.
    """
    _kernels.run_mxfp4(*arguments, H_SPLIT)

"""hopper_fused: the FP8 layer in CUDA for Hopper, one launch for few tokens, four or six for many.

With few tokens, reading the weights from memory bounds the layer, so one kernel streams them
(few_tokens/). With more, routing, two grouped GEMMs and the combine are kernels of their own
(many_tokens/). An element of h, the activation between the GEMMs, is held in two FP8 values, hi and
lo, up to 32 rows per expert, and in H_SPLIT values above (h_split.py). README.md describes the
design.
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

# compiled on import, when the solution is built, not at its first call
_kernels = load_kernels()


@takes(DS_ROUTING)
def run(arguments):
    """Write `output` [T, H] bf16: DeepSeek-V3's FP8 layer, of one expert-parallel rank.

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
    """As `run`, for hidden_states [T, H] bf16 without scales. The kernels quantise them."""
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
    """As `run`, for routed definitions.

    The caller passes experts and their weights; `gate` rows of gemm1_weights come first; the scales
    of tokens are [T, H / 128].
    """
    _kernels.run_routed(*arguments, H_SPLIT)


@takes(ROUTED_BF16)
def run_routed_bf16(arguments):
    """As `run_routed`, for hidden_states in bf16."""
    _kernels.run_routed_bf16(*arguments, H_SPLIT)


# As the functions above, with one more argument, which has to be named: peers, a `Peers`
# (allreduce.py) of the ranks over which the output is summed. Each rank has some of the experts, or
# some of each expert's intermediate size. They also raise RankMissing, a RuntimeError, where an
# earlier call has waited for a rank in vain.
run_allreduce = summed("run_layer", DS_ROUTING)
run_allreduce_bf16 = summed("run_layer_bf16", DS_ROUTING_BF16)
run_renorm_allreduce = summed("run_renorm", RENORM_ROUTING)
run_renorm_allreduce_bf16 = summed("run_renorm_bf16", RENORM_ROUTING_BF16)
run_routed_allreduce = summed("run_routed", ROUTED)
run_routed_allreduce_bf16 = summed("run_routed_bf16", ROUTED_BF16)


@as_int8
@takes(ROUTED_MXFP4)
def run_mxfp4(arguments):
    """As `run_routed`, for experts in MXFP4: bytes of two E2M1, and an E8M0 scale for each 32 of K.

    Kernels convert the weights to FP8, exactly, for any scales.
    """
    _kernels.run_mxfp4(*arguments, H_SPLIT)

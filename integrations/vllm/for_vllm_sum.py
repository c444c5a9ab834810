"""for_vllm_sum: experts whose output is summed over the ranks before vLLM gets it.

vLLM then leaves out its all-reduce behind the layer. With few tokens the layer's own launch sums
over the ranks. With more than it can sum, the experts call vLLM's all-reduce themselves.

A server asks for it with `--additional-config '{"experts_sum_over_ranks": true}'`. vLLM compiles
into the model whether there is an all-reduce. This is safe with its cache of compiled models, whose
hash includes the additional config.
"""

# pyright: reportMissingImports=false
# vLLM is installed where a package is used, not here.

from functools import cache, partial

import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tp_group, tensor_model_parallel_all_reduce
from vllm.model_executor.layers.fused_moe.prepare_finalize.no_dp_ep import (
    MoEPrepareAndFinalizeNoDPEPModular,
)

from integrations.for_engines import SOLUTION

OPTION = "experts_sum_over_ranks"


class SumIsDone(MoEPrepareAndFinalizeNoDPEPModular):
    """Tells vLLM that the layer's output is already the sum over ranks.

    vLLM has such classes for expert parallelism, where the exchange of tokens adds up.
    """

    def output_is_reduced(self):
        return True

    def supports_deferred_moe_finalize(self):
        # asked by newer releases, whose models may otherwise sum behind the layer
        return False


def is_asked_for():
    """Return whether the server's additional config has OPTION."""
    options = get_current_vllm_config().additional_config
    return isinstance(options, dict) and bool(options.get(OPTION))


def check_can_sum(moe):
    """Raise ValueError, with the reason, where experts cannot sum over the ranks.

    They can where all ranks make the same calls, with the same tokens, in the same order, and vLLM
    does not want the sum elsewhere. moe: FusedMoEConfig.
    """
    parallel = moe.moe_parallel_config
    own_tokens = (
        parallel.dp_size > 1 or parallel.pcp_size > 1 or parallel.is_sequence_parallel
    )
    reasons = {
        f"solution {SOLUTION} has no run_allreduce": not has_sum(),
        "there is one rank": parallel.tp_size == 1 and parallel.ep_size == 1,
        "ranks have tokens of their own": own_tokens,
        "batches are cut, for two streams": get_current_vllm_config().parallel_config.use_ubatching,
        "the model sums behind the layer": moe.skip_final_all_reduce,
    }
    for reason, applies in reasons.items():
        if applies:
            raise ValueError(f"{OPTION}: got true, but {reason}; leave it out")


def has_sum():
    """Return whether this package has the function that sums over ranks."""
    try:
        from integrations import Peers, run_allreduce_bf16  # noqa: F401
    except ImportError:
        return False
    return True


def summing_kernel(experts):
    """Return vLLM's kernel for these experts, changed so that its output is the sum over ranks."""
    experts.run = partial(run_and_sum, shared_peers())
    return mk.FusedMoEKernel(SumIsDone(), experts)


def run_and_sum(peers, *arguments):
    """Compute a layer, and write its sum over the ranks to the last of run_bf16's arguments."""
    from integrations import run_allreduce_bf16, run_bf16

    output = arguments[-1]
    if len(output) <= peers.launch_tokens:
        run_allreduce_bf16(*arguments, peers=peers)
        return

    # vLLM cannot sum behind the layer for these calls alone: the model is compiled once for all
    # numbers of tokens. The copy is needed because vLLM's all-reduce returns another tensor.
    run_bf16(*arguments)
    output.copy_(tensor_model_parallel_all_reduce(output))


@cache
def shared_peers():
    """Return what the ranks of this process's group share, the same for all layers.

    All ranks must call it, as they do while they load weights.
    """
    from integrations import Peers

    return Peers(get_tp_group().device_group)

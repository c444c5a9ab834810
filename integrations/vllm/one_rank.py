"""One of N expert-parallel ranks on a GPU of its own: `vllm serve --worker-extension-cls
one_rank.OneRank`.

vLLM imports this in a worker before it builds the model. The layers then hold the first rank's
experts, and the map of all others, as with N GPUs; nothing is sent, so what other ranks would add
is missing: for timing one rank's share.
"""

from dataclasses import replace

from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe.config import FusedMoEParallelConfig

make = FusedMoEParallelConfig.make


class OneRank:
    """Adds nothing to vLLM's worker."""


def make_one_of_many(*args, **kwargs) -> FusedMoEParallelConfig:
    """Return vLLM's own for one GPU, as the first of the config's expert_ranks."""
    config = get_current_vllm_config().model_config.hf_config
    alone = make(*args, **kwargs)
    return replace(alone, use_ep=True, ep_size=config.expert_ranks, ep_rank=0)


FusedMoEParallelConfig.make = staticmethod(make_one_of_many)

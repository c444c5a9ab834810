"""Make vLLM, on one GPU, serve the first of N expert-parallel ranks, to time one rank's share.

    vllm serve CHECKPOINT --worker-extension-cls one_rank.OneRank

The option makes vLLM import this file in its worker before it builds the model. The layers then
have the first rank's experts only, as with N GPUs, and vLLM's map from all experts to them. Nothing
is sent, so what other ranks would add to the output is missing.

server.py passes the option for checkpoints whose config has expert_ranks, which is N.
"""

from dataclasses import replace

from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe.config import FusedMoEParallelConfig

vllm_make = FusedMoEParallelConfig.make


class OneRank:
    """An empty class, as vLLM's option needs one."""


def make_one_of_many(*args, **kwargs) -> FusedMoEParallelConfig:
    """Return the parallel config of one GPU, changed to that of the first of N ranks."""
    config = get_current_vllm_config().model_config.hf_config
    one_gpu = vllm_make(*args, **kwargs)
    return replace(one_gpu, use_ep=True, ep_size=config.expert_ranks, ep_rank=0)


FusedMoEParallelConfig.make = staticmethod(make_one_of_many)

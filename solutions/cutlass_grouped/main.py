"""cutlass_grouped: CUTLASS's grouped FP8 GEMMs between our own kernels, all launched by one C++
call.

layer.cu is the map; every other CUDA file is one stage or one tile. NOTES.md
has measurements.
"""

from functools import lru_cache

from ..common.host.arguments import DS_ROUTING, RENORM_ROUTING, takes
from .build import load_kernels
from .tiles import choose_tiles

_gemms, _layer = (
    load_kernels()
)  # compiled on import, when the solution is built, not at its first call


@lru_cache(maxsize=4096)
def _tiles(num_tokens):
    return tuple(_gemms.find_tile(name) for name in choose_tiles(num_tokens))


@takes(DS_ROUTING)
def run(arguments):
    """DeepSeek-V3 FP8 block-scale MoE layer of one expert-parallel rank; writes `output` [T, H]
    bf16.

    Arguments are DS_ROUTING's (common/host/arguments.py). Launches on the current stream and never
    waits for the device.

    Raises:
        ValueError: an argument is not what the definition says, or there are more than 131072
            tokens; checked before anything is launched.
        RuntimeError: CUDA refuses a call.
    """
    _layer.run_layer(*arguments, *_tiles(arguments[0].shape[0]))


@takes(RENORM_ROUTING)
def run_renorm(arguments):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    _layer.run_renorm(*arguments, *_tiles(arguments[0].shape[0]))

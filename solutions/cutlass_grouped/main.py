"""cutlass_grouped: the FP8 layer with CUTLASS's grouped GEMMs between our own kernels.

One C++ function launches all of them (layer.cu, which says what runs when); every other CUDA file
is a stage, or a tile of the GEMMs. NOTES.md has measurements.
"""

from functools import lru_cache

from ..common.host.arguments import DS_ROUTING, RENORM_ROUTING, takes
from .build import load_kernels
from .tiles import choose_tiles

# compiled on import, when the solution is built, not at its first call
_gemms, _layer = load_kernels()


@lru_cache(maxsize=4096)
def _tiles(num_tokens):
    """Return C++ handles of the compiled tiles for gemm1 and gemm2."""
    gemm1, gemm2 = choose_tiles(num_tokens)
    return _gemms.find_tile(gemm1), _gemms.find_tile(gemm2)


@takes(DS_ROUTING)
def run(arguments):
    """Write `output` [T, H] bf16: DeepSeek-V3's FP8 layer, of one expert-parallel rank.

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

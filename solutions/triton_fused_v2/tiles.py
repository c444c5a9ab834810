"""tiles: which tile each product uses, by GPU, geometry and token count. Host code only; no GPU is asked.

scripts/tune.py writes a table for one GPU and one geometry into tiles_<GPU>_<geometry>.py beside this file; other GPUs
take what is tabled here by architecture. Rows are padded once, to gemm1's BLOCK_M, which is a multiple of gemm2's.
"""

import re
from functools import lru_cache
from importlib import import_module
from math import log
from typing import NamedTuple


class Tile(NamedTuple):
    block_m: int  # rows of a tile
    block_n: int  # columns of a tile; 128 in gemm1, whose column tile is a quantisation group
    group: int  # row tiles visited before the next column tile
    per_sm: int  # programs for each multiprocessor
    num_warps: int
    num_stages: int
    programs: int = 0  # per_sm x multiprocessors, filled in when the device is known


class Choice(NamedTuple):
    gemm1: Tile
    gemm2: Tile
    fused: bool  # gemm1 applies SwiGLU and quantises; otherwise swiglu_quant does
    tma: bool  # h lies in expert order and gemm2 reads it through TMA; otherwise in pair order, gathered by index


# Where no table says otherwise gemm1 leaves its activation to swiglu_quant from this many tokens on; see
# docs/triton_fused_v2.md.
SEPARATE_SWIGLU_FROM = 1025

# (architecture, stage) -> rows: (largest T it is for, tile)
TABLE = {
    ("sm_90", "gemm1"): (
        (256, Tile(16, 128, 8, 2, 4, 3)),
        (1024, Tile(32, 128, 8, 2, 4, 3)),
        (None, Tile(64, 128, 16, 2, 4, 3)),
    ),
    ("sm_90", "gemm2"): (
        (256, Tile(16, 128, 8, 2, 4, 5)),
        (1024, Tile(32, 128, 8, 2, 4, 4)),
        (None, Tile(64, 128, 16, 2, 4, 4)),
    ),
    # compiled ahead of time only; never run by us on SM100
    ("sm_100", "gemm1"): (
        (256, Tile(16, 128, 8, 2, 4, 3)),
        (1024, Tile(32, 128, 8, 1, 8, 3)),
        (None, Tile(64, 128, 16, 2, 4, 3)),
    ),
    ("sm_100", "gemm2"): (
        (256, Tile(16, 128, 8, 2, 4, 5)),
        (1024, Tile(32, 128, 8, 2, 4, 4)),
        (None, Tile(64, 128, 16, 2, 4, 4)),
    ),
}


def table_name(gpu, local_experts, hidden, intermediate):
    """Module of the table for a GPU, by the name CUDA gives it, and a geometry; whether or not there is one."""
    return f"tiles_{re.sub('[^a-z0-9]+', '_', gpu.lower())}_e{local_experts}_h{hidden}_i{intermediate}"


@lru_cache
def _tuned(gpu, geometry):
    """Choices by token count, from the table of this GPU and geometry; {} without one."""
    try:
        rows = import_module(f".{table_name(gpu, *geometry)}", __package__).TABLE
    except ModuleNotFoundError:
        return {}
    return {
        row["T"]: Choice(Tile(**row["gemm1"]), Tile(**row["gemm2"]), row["gemm1_fused"], row["gemm2_tma"])
        for row in rows
    }


def _by_architecture(architecture, num_tokens):
    if (architecture, "gemm1") not in TABLE:
        known = sorted({name for name, _ in TABLE})
        raise ValueError(f"architecture: got {architecture}, tiles are tabled for {', '.join(known)}")
    tiles = [
        next(tile for limit, tile in TABLE[architecture, stage] if limit is None or num_tokens <= limit)
        for stage in ("gemm1", "gemm2")
    ]
    return Choice(*tiles, num_tokens < SEPARATE_SWIGLU_FROM, True)


@lru_cache(maxsize=4096)
def choose(architecture, gpu, multiprocessors, geometry, num_tokens):
    """Tiles for num_tokens >= 1 tokens: those of the tabled token count that is nearest by ratio.

    Args:
        architecture: "sm_90", for GPUs without a table.
        gpu: the name CUDA gives it; multiprocessors: a product's grid is per_sm times as many programs.
        geometry: (E_local, H, I).

    Raises:
        ValueError: neither the GPU nor the architecture has a table.
    """
    tuned = _tuned(gpu, geometry)
    if tuned:
        choice = tuned[min(tuned, key=lambda tabled: abs(log(tabled / num_tokens)))]
    else:
        choice = _by_architecture(architecture, num_tokens)
    tiles = [tile._replace(programs=tile.per_sm * multiprocessors) for tile in (choice.gemm1, choice.gemm2)]
    return choice._replace(gemm1=tiles[0], gemm2=tiles[1])

"""scratch: what a call needs besides its arguments, kept from one call to the next.

Allocating costs the host microseconds, so the calls of one host thread on one stream, which run in
order, share one block of memory, as large as the largest of them needs. No value in it outlives a
call, but for the zeros in the counters (counters.py). A graph may be replayed while its stream
runs, so a capture allocates from the graph's pool.

    offset 0 | pairs | h scales | h | x scales | x | g
                                    | y                     once gemm1 and SwiGLU are done with what lies there
"""

import threading
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch

from ..common.host.problem import HIDDEN_SIZE, INTERMEDIATE_SIZE, TOP_K
from .counters import counters, forget_counters
from .rows import arrange

ALIGNMENT = 256  # bytes; torch's own for allocations is 512, TMA's for operands 16
MOST_VIEWED = 256  # token counts of which a block's views are kept

_kept = {}  # caller -> (block, T -> views)


class Views(NamedTuple):
    """Tensors in a block. `...` is Rows.shape; of scales, neighbours in a column are neighbours, as
    TMA loads them.
    """

    pairs: torch.Tensor  # [4, T, TOP_K] int32 (pairs.py)
    h_scale: torch.Tensor  # [..., I / 128] float32
    h: torch.Tensor  # [..., I] float8_e4m3fn
    x_scale: torch.Tensor  # [..., H / 128] float32
    x: torch.Tensor  # [..., H] float8_e4m3fn
    g: torch.Tensor  # [..., 2 I] bfloat16
    y: torch.Tensor  # [..., H] bfloat16


class Scratch(NamedTuple):
    counts: torch.Tensor  # [E_local] int32, zeros before and after a call
    ends: torch.Tensor  # [E_local] int32
    block: torch.Tensor  # bytes
    views: Views


@lru_cache(maxsize=4096)
def places(num_tokens):
    """Of each field of `Views` its offset in bytes, shape, strides and dtype; and the bytes of
    all.
    """
    rows = arrange(num_tokens)

    def values(columns, dtype):
        shape = (*rows.shape, columns)
        return shape, (rows.room * columns, columns, 1)[-len(shape) :], dtype

    def scales(columns):
        blocks = columns // 128
        strides = (blocks * rows.room, 1, rows.room) if rows.masked else (1, rows.room)
        return (*rows.shape, blocks), strides, torch.float32

    forms = {
        "pairs": ((4, num_tokens, TOP_K), (num_tokens * TOP_K, TOP_K, 1), torch.int32),
        "h_scale": scales(INTERMEDIATE_SIZE),
        "h": values(INTERMEDIATE_SIZE, torch.float8_e4m3fn),
        "x_scale": scales(HIDDEN_SIZE),
        "x": values(HIDDEN_SIZE, torch.float8_e4m3fn),
        "g": values(2 * INTERMEDIATE_SIZE, torch.bfloat16),
        "y": values(HIDDEN_SIZE, torch.bfloat16),
    }
    found, end, most = {}, 0, 0
    for name, form in forms.items():
        offset = found["x_scale"][0] if name == "y" else end
        found[name] = (offset, *form)
        end = offset + -(-prod(form[0]) * form[2].itemsize // ALIGNMENT) * ALIGNMENT
        most = max(most, end)
    return found, most


def scratch_of(device, stream, num_tokens):
    """The `Scratch` of a call of T >= 1 tokens on the current stream, whose handle is given, of the
    current device.
    """
    counts, ends = counters(device, stream)
    num_bytes = places(num_tokens)[1]
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        block, seen = _allocate(device, num_bytes), {}
    else:
        caller = device, stream, threading.get_ident()
        block, seen = _kept.get(caller, (None, None))
        if block is None or len(block) < num_bytes:
            block = None  # lets the smaller one go first
            _kept.pop(caller, None)
            block, seen = _kept[caller] = _allocate(device, num_bytes), {}
    if num_tokens not in seen:
        if len(seen) >= MOST_VIEWED:
            seen.clear()
        seen[num_tokens] = _views(block, num_tokens)
    return Scratch(counts, ends, block, seen[num_tokens])


def forget_scratch(device, stream):
    """After a call that failed between its kernels."""
    forget_counters(device, stream)
    _kept.pop((device, stream, threading.get_ident()), None)


def _allocate(device, num_bytes):
    return torch.empty(num_bytes, dtype=torch.uint8, device=device)


def _views(block, num_tokens):
    found = {}
    for name, (offset, shape, strides, dtype) in places(num_tokens)[0].items():
        part = block[offset : offset + prod(shape) * dtype.itemsize].view(dtype)
        found[name] = part.as_strided(shape, strides)
    return Views(**found)

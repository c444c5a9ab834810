"""scratch: what a call needs besides its arguments, kept from one call to the next.

Allocating costs the host microseconds, so the calls of one host thread on one stream, which run in
order, share one block of memory, as large as the largest of them needs. No value in it outlives a
call, but for the zeros in the counters (counters.py). A graph may be replayed while its stream
runs, so a capture allocates from the graph's pool.

    offset 0 | pairs | h scales | h | x scales | x | g
                                    | y
y is written once gemm1 and SwiGLU are done with what lies there.
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
    """Tensors in a block. `...` is Rows.shape.

    Of scales, neighbours in a column are neighbours, as TMA loads them.
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


class Place(NamedTuple):
    """Where in a block a field of `Views` is, and as what."""

    offset: int  # bytes
    shape: tuple
    strides: tuple
    dtype: torch.dtype


@lru_cache(maxsize=4096)
def places(num_tokens):
    """Return the `Place` of each field of `Views`, and the bytes of all."""
    rows = arrange(num_tokens)
    forms = {
        "pairs": ((4, num_tokens, TOP_K), (num_tokens * TOP_K, TOP_K, 1), torch.int32),
        "h_scale": _scales(rows, INTERMEDIATE_SIZE),
        "h": _values(rows, INTERMEDIATE_SIZE, torch.float8_e4m3fn),
        "x_scale": _scales(rows, HIDDEN_SIZE),
        "x": _values(rows, HIDDEN_SIZE, torch.float8_e4m3fn),
        "g": _values(rows, 2 * INTERMEDIATE_SIZE, torch.bfloat16),
        "y": _values(rows, HIDDEN_SIZE, torch.bfloat16),
    }

    by_name = {}
    end = 0
    num_bytes = 0
    for name, (shape, strides, dtype) in forms.items():
        offset = by_name["x_scale"].offset if name == "y" else end
        by_name[name] = Place(offset, shape, strides, dtype)
        size = prod(shape) * dtype.itemsize
        end = offset + -(-size // ALIGNMENT) * ALIGNMENT
        num_bytes = max(num_bytes, end)
    return by_name, num_bytes


def _values(rows, columns, dtype):
    """Return shape, strides and dtype of rows of values."""
    shape = (*rows.shape, columns)
    strides = (rows.room * columns, columns, 1)
    return shape, strides[-len(shape) :], dtype


def _scales(rows, columns):
    """Return shape, strides and dtype of the scales of rows, one for each 128 columns."""
    blocks = columns // 128
    strides = (1, rows.room)
    if rows.masked:
        strides = (blocks * rows.room, *strides)
    return (*rows.shape, blocks), strides, torch.float32


def scratch_of(device, stream, num_tokens):
    """Return the `Scratch` of a call of T >= 1 tokens.

    device: the current device. stream: handle of its current stream.
    """
    counts, ends = counters(device, stream)
    num_bytes = places(num_tokens)[1]
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        block = _allocate(device, num_bytes)
        views = {}
    else:
        block, views = _kept_block(device, stream, num_bytes)

    if num_tokens not in views:
        if len(views) >= MOST_VIEWED:
            views.clear()
        views[num_tokens] = _views(block, num_tokens)
    return Scratch(counts, ends, block, views[num_tokens])


def _kept_block(device, stream, num_bytes):
    """Return the caller's block, made anew where it is too small, and T -> its `Views`."""
    caller = device, stream, threading.get_ident()
    block, views = _kept.get(caller, (None, None))
    if block is None or len(block) < num_bytes:
        # lets the smaller block go, which its views hold, too, before the new one is allocated
        block = None
        views = {}
        _kept.pop(caller, None)
        block = _allocate(device, num_bytes)
        _kept[caller] = block, views
    return block, views


def forget_scratch(device, stream):
    """Have the next call get new scratch, as a call failed between its kernels."""
    forget_counters(device, stream)
    _kept.pop((device, stream, threading.get_ident()), None)


def _allocate(device, num_bytes):
    """Return a new block of so many bytes."""
    return torch.empty(num_bytes, dtype=torch.uint8, device=device)


def _views(block, num_tokens):
    """Return the `Views` of a block for T tokens."""
    by_name = {}
    for name, place in places(num_tokens)[0].items():
        size = prod(place.shape) * place.dtype.itemsize
        part = block[place.offset : place.offset + size]
        by_name[name] = part.view(place.dtype).as_strided(place.shape, place.strides)
    return Views(**by_name)

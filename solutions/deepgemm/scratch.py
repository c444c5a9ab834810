"""scratch: the device memory that a call needs besides its arguments, kept from call to call.

Allocating costs the host microseconds, so the calls of one host thread on one stream, which run in
order, share one block of memory, as large as the largest of them needs. No value in it outlives a
call, except the zeros in the counters, which have memory of their own (counters.py). A CUDA graph
may be replayed while its stream runs other calls, so a capture allocates from the graph's pool.

    offset 0 | pairs | h scales | h | x scales | x | g
                                    | y
y takes the memory of x's scales, x and g, which nothing reads after gemm1 and SwiGLU.
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
MOST_VIEWED = 256  # numbers of tokens for which a block's views are kept

_kept = {}  # caller, (device, stream, thread) -> (block, dict of T -> Views)


class Views(NamedTuple):
    """Tensors in a block. `...` is Rows.shape.

    The scales of neighbouring rows are adjacent in memory, as TMA loads them.
    """

    pairs: torch.Tensor  # [4, T, TOP_K] int32 (pairs.py)
    h_scale: torch.Tensor  # [..., I / 128] float32
    h: torch.Tensor  # [..., I] float8_e4m3fn
    x_scale: torch.Tensor  # [..., H / 128] float32
    x: torch.Tensor  # [..., H] float8_e4m3fn
    g: torch.Tensor  # [..., 2 I] bfloat16
    y: torch.Tensor  # [..., H] bfloat16


class Scratch(NamedTuple):
    """All scratch of a call."""

    counts: torch.Tensor  # [E_local] int32, zeros before and after a call
    ends: torch.Tensor  # [E_local] int32
    block: torch.Tensor  # bytes
    views: Views


class Place(NamedTuple):
    """Offset, shape, strides and dtype of a field of `Views` in a block."""

    offset: int  # bytes
    shape: tuple
    strides: tuple
    dtype: torch.dtype


@lru_cache(maxsize=4096)
def places(num_tokens):
    """Return field of `Views` -> Place for T tokens, and the bytes of a block for them."""
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
    """Return shape, strides and dtype of `columns` values for each row. rows: a `Rows`."""
    shape = (*rows.shape, columns)
    strides = (rows.room * columns, columns, 1)
    return shape, strides[-len(shape) :], dtype


def _scales(rows, columns):
    """Return shape, strides and dtype of scales, one for each row and 128 columns."""
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
    """Return this thread's block for a stream, of num_bytes or more, and its dict of T -> Views."""
    caller = device, stream, threading.get_ident()
    block, views = _kept.get(caller, (None, None))
    if block is None or len(block) < num_bytes:
        # drops all references to the smaller block, its views' too, before allocating the new one
        block = None
        views = {}
        _kept.pop(caller, None)
        block = _allocate(device, num_bytes)
        _kept[caller] = block, views
    return block, views


def forget_scratch(device, stream):
    """Make the next call of this caller get new scratch. For a call that failed between kernels."""
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

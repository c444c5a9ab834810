"""counters: how many rows each local expert has, zero between calls; beside them, where its rows
end.

Zeroing them ahead of the first kernel would be one launch more, so the last kernel of a call leaves
zeros. Calls of one host thread on one stream run in order and share the counters, which are made at
the first of them; those of two threads interleave. A graph may be replayed while its stream runs,
so the calls of a capture share others, from the graph's memory pool, which the graph zeroes before
the first of them.
"""

import ctypes
import threading
from functools import cache

import torch

from ..common.host.problem import NUM_LOCAL_EXPERTS

_kept = {}  # caller -> counters
_captured = {}  # caller -> (number of its last capture, counters)


def counters(device, stream):
    """Return a call's counts [E_local] int32, zeros, and ends [E_local] int32, undefined.

    device: the current device. stream: handle of its current stream.
    """
    caller = device, stream, threading.get_ident()
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        capture = _capture_number(stream)
        if _captured.get(caller, (None,))[0] != capture:
            _captured[caller] = capture, _new(device)
        return _captured[caller][1]
    if caller not in _kept:
        _kept[caller] = _new(device)
    return _kept[caller]


def forget_counters(device, stream):
    """Have the next call get new counters.

    A call that failed between its kernels has left counts in the old ones.
    """
    caller = device, stream, threading.get_ident()
    _kept.pop(caller, None)
    _captured.pop(caller, None)


def _new(device):
    """Return new counts and ends."""
    counts = torch.zeros(NUM_LOCAL_EXPERTS, dtype=torch.int32, device=device)
    ends = torch.empty(NUM_LOCAL_EXPERTS, dtype=torch.int32, device=device)
    return counts, ends


def _capture_number(stream):
    """Return the CUDA driver's number of the capture that a stream is in.

    No two captures of a process have the same.
    """
    status = ctypes.c_int()
    number = ctypes.c_uint64()
    error = _driver().cuStreamGetCaptureInfo(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number)
    )
    if error:
        raise RuntimeError(f"deepgemm: cuStreamGetCaptureInfo failed with CUDA error {error}")
    return number.value


@cache
def _driver():
    return ctypes.CDLL("libcuda.so.1")

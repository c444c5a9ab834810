"""counters: tensors for the number of rows of each local expert, and for where its rows end.

scratch.py takes them for each call. The numbers have to be zero when a call begins. Zeroing them
then would be one launch more, so the last kernel of each call (combine_reset.py) leaves zeros.
Calls of one host thread on one stream run in order and share counters, which are allocated at the
first call; calls of two threads may interleave, so each thread has its own. A CUDA graph may be
replayed while its stream runs other calls, so the calls in a capture share another pair, allocated
from the graph's memory pool and zeroed by the graph before its first call.
"""

import ctypes
import threading
from functools import cache

import torch

from ..common.host.problem import NUM_LOCAL_EXPERTS

# A caller is (device, stream, thread); counters are (counts, ends).
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
    """Make the next call of this caller get new counters, which are zero.

    It is for a call that failed between its kernels, and so did not leave zeros.
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
    """Return the CUDA driver's number of the capture that a stream is in, unique in the process."""
    status = ctypes.c_int()
    number = ctypes.c_uint64()
    error = _driver().cuStreamGetCaptureInfo(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number)
    )
    if error:
        raise RuntimeError(
            f"deepgemm: cuStreamGetCaptureInfo failed with CUDA error {error}"
        )
    return number.value


@cache
def _driver():
    """Return the CUDA driver's library."""
    return ctypes.CDLL("libcuda.so.1")

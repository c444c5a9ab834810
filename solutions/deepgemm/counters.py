"""counters: how many rows each local expert has, zero between calls.

Zeroing them ahead of the first kernel would be one launch more, so the last kernel of a call leaves zeros. Calls of one
host thread on one stream run in order and share the counters, which are made at the first of them; those of two threads
interleave. A graph may be replayed while its stream runs, so the calls of a capture share others, from the graph's
memory pool, which the graph zeroes before the first of them.
"""

import ctypes
import threading
from functools import cache

import torch

_kept = {}  # caller -> counters
_captured = {}  # caller -> (number of its last capture, counters)


def counters(device, num_local_experts):
    """[E_local] int32 zeros for a call on the current stream of the device, which must be the current device."""
    caller = _caller(device)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        capture = _capture_number(caller[1])
        if _captured.get(caller, (None,))[0] != capture:
            _captured[caller] = capture, _zeros(device, num_local_experts)
        return _captured[caller][1]
    if caller not in _kept:
        _kept[caller] = _zeros(device, num_local_experts)
    return _kept[caller]


def forget_counters(device):
    """After a call that failed between its kernels, and so left counts: the next one gets new counters."""
    _kept.pop(_caller(device), None)
    _captured.pop(_caller(device), None)


def _caller(device):
    stream = torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0
    return device, stream, threading.get_ident()


def _zeros(device, num_local_experts):
    return torch.zeros(num_local_experts, dtype=torch.int32, device=device)


def _capture_number(stream):
    """The CUDA driver's number of the capture that a stream is in: no two captures of a process have the same."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    error = _driver().cuStreamGetCaptureInfo(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number))
    if error:
        raise RuntimeError(f"deepgemm: cuStreamGetCaptureInfo failed with CUDA error {error}")
    return number.value


@cache
def _driver():
    return ctypes.CDLL("libcuda.so.1")

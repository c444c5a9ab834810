"""counters: how many rows each local expert has, zero between calls.

Zeroing them ahead of the first kernel would be one launch more, so the last kernel of a call leaves zeros. Calls of one
host thread on one stream run in order and share the counters, which are made at the first of them; those of two threads
interleave. A graph that is being captured gets its own, from the graph's memory pool, as it may be replayed while its
stream runs.
"""

import threading

import torch

_kept = {}


def _caller(device):
    stream = torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0
    return device, stream, threading.get_ident()


def counters(device, num_local_experts):
    """[E_local] int32 zeros for a call on the current stream of the device, which must be the current device."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return torch.zeros(num_local_experts, dtype=torch.int32, device=device)
    key = _caller(device)
    if key not in _kept:
        _kept[key] = torch.zeros(num_local_experts, dtype=torch.int32, device=device)
    return _kept[key]


def forget_counters(device):
    """After a call that failed between its kernels, and so left counts: the next one gets new counters."""
    _kept.pop(_caller(device), None)

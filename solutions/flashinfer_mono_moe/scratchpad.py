"""scratchpad: device memory through which mono_moe's CTAs synchronise, one for each stream.

It has to be zero before the first launch that uses it; later the kernel maintains it, a count of
launches included. Launches that may run at the same time need different scratchpads. A stream's
first call is often captured, when memory cannot be cleared ahead of the graph, so scratchpads for
STREAMS streams are allocated and cleared when the solution is built.
"""

from functools import cache

import torch
from flashinfer.fused_moe.monomoe import get_scratchpad_size_bytes

STREAMS = 64
ALIGNMENT = 1024
_of_stream = {}


@cache
def spare(device):
    """Return an iterator over the unused scratchpads of a device, each [bytes] uint8, zeros.

    device: its number. The same iterator is returned each time.

    Raises:
        RuntimeError: the device was never used before, and the stream is being captured.
    """
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "flashinfer_mono_moe: the first call on a device cannot be captured"
        )
    size = -(-get_scratchpad_size_bytes() // ALIGNMENT) * ALIGNMENT
    zeros = torch.zeros(STREAMS, size, dtype=torch.uint8)
    pads = zeros.to(device=device)  # a copy from the host is complete when it returns
    return iter(pads.unbind())


def scratchpad(device):
    """Return the scratchpad of a device's current stream. device: its number.

    Raises:
        RuntimeError: more than STREAMS streams of the device have called, or as `spare`.
    """
    key = device, torch.cuda.current_stream(device).cuda_stream
    if key not in _of_stream:
        pad = next(spare(device), None)
        if pad is None:
            where = f"more than {STREAMS} streams of device {device}"
            raise RuntimeError(f"flashinfer_mono_moe: called on {where}")
        _of_stream[key] = pad
    return _of_stream[key]

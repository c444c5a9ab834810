"""Correct fp32 -> fp8 rounding for Triton 3.6's interpreter.

There a mantissa that rounds up past its last bit is or-ed into the exponent instead of carried,
which halves about 1.4% of all values; GPUs round to nearest even and saturate. No kernel can make
up for that, so it is put right here, for machines without a GPU only.
"""

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

LARGEST = 448.0  # of float8_e4m3fn

_original = interpreter._convert_float


def convert_float(values, source, target, rounding_mode):
    """Stands in for the interpreter's own; returns the bits of the target type."""
    if source != tl.float32 or target != tl.float8e4nv:
        return _original(values, source, target, rounding_mode)
    fp32 = torch.from_numpy(np.array(values, copy=True).view(np.float32))
    fp8 = fp32.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return fp8.view(torch.uint8).numpy()


def install() -> None:
    interpreter._convert_float = convert_float

"""What a GPU does and Triton 3.6's interpreter does not: correct fp8 and bf16 arithmetic, and an exp that may overflow.

There a mantissa that rounds up past its last bit is or-ed into the exponent instead of carried,
which halves about 1.4% of all values; GPUs round to nearest even and saturate. And a product of bf16
is one of the bits that stand for it, as 16-bit integers. An exp too large for its type is infinity on
both, but comes with a warning, though nothing is wrong. No kernel can make up for that, so it is put
right here, for machines without a GPU only.
"""

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

LARGEST = 448.0  # of float8_e4m3fn

_original = interpreter._convert_float
_original_dot = interpreter.InterpreterBuilder.create_dot
_original_exp = interpreter.InterpreterBuilder.create_exp


def convert_float(values, source, target, rounding_mode):
    """Stands in for the interpreter's own; returns the bits of the target type."""
    if source != tl.float32 or target not in (tl.float8e4nv, tl.bfloat16):
        return _original(values, source, target, rounding_mode)
    fp32 = torch.from_numpy(np.array(values, copy=True).view(np.float32))
    if target == tl.bfloat16:
        return fp32.to(torch.bfloat16).view(torch.uint16).numpy()
    fp8 = fp32.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return fp8.view(torch.uint8).numpy()


def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    """Stands in for the interpreter's own: bf16 operands are multiplied as the fp32 numbers that they are."""

    def wide(operand):
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        fp32 = (operand.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(fp32, tl.float32)

    return _original_dot(self, wide(a), wide(b), d, input_precision, max_num_imprecise_acc)


def create_exp(self, argument):
    """Stands in for the interpreter's own: infinity without a warning."""
    with np.errstate(over="ignore"):
        return _original_exp(self, argument)


def install() -> None:
    interpreter._convert_float = convert_float
    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter.InterpreterBuilder.create_exp = create_exp

"""Choose Triton's interpreter on a machine without a CUDA device, correct it, and make it faster.

Import this module before anything imports Triton. Triton 3.6's interpreter has four faults that no
kernel can make up for: a mantissa of fp8 or bf16 that rounds up past its last bit is or-ed into the
exponent, not carried; NaN of fp8 becomes 480; a dot multiplies the bits of bf16 as integers; an exp
that overflows warns. Half of its time goes into overflow checks whose result is ignored, and into
looking for builtins.

For a program other than `moebench`, TRITON_INTERPRET=0 keeps the compiler, to compile for a GPU
that is not here.
"""

import dataclasses
import inspect
import os
from functools import lru_cache

import torch

# Triton reads this when it is first imported, and flashinfer_bench imports Triton.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

LARGEST = 448.0  # float8_e4m3fn
TORCH_TYPES = {
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
}

_original_convert = interpreter._convert_float
_original_dot = interpreter.InterpreterBuilder.create_dot


def convert_float(values, source, target, rounding_mode):
    """Return numbers as bits of the target type, rounded to nearest even. In place of Triton's.

    values: bits of the source type.
    """
    if source not in TORCH_TYPES or target not in TORCH_TYPES:
        return _original_convert(values, source, target, rounding_mode)

    source_bits = torch.from_numpy(np.array(values, copy=True))
    numbers = source_bits.view(TORCH_TYPES[source]).float()
    if target == tl.float8e4nv:
        numbers = numbers.clamp(-LARGEST, LARGEST)

    unsigned = getattr(torch, f"uint{target.primitive_bitwidth}")
    return numbers.to(TORCH_TYPES[target]).view(unsigned).numpy()


def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    """Return a dot whose bf16 operands are multiplied as numbers. In place of Triton's."""
    return _original_dot(
        self, widened(a), widened(b), d, input_precision, max_num_imprecise_acc
    )


def widened(operand):
    """Return a bf16 operand as fp32, and any other as it is."""
    if operand.dtype.scalar != tl.bfloat16:
        return operand
    fp32 = (operand.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(fp32, tl.float32)


@lru_cache
def builtins_of(package):
    """Return (name, function) of the builtins in triton.language or a part of it, as they are
    before Triton replaces them for the first time.
    """
    members = inspect.getmembers(package)
    return [(name, member) for name, member in members if tl.core.is_builtin(member)]


def patch_builtin(package, *builder_and_scope):
    """Replace builtins for a kernel's run. In place of Triton's, which looks for them each time."""
    for name, member in builtins_of(package):
        if getattr(package, name) is member:
            interpreter._patch_attr(package, name, member, *builder_and_scope)


def correct_interpreter() -> None:
    """Put the functions of this module in the place of the interpreter's."""
    checked = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(
        checked, sanitize_overflow=False
    )
    interpreter._patch_builtin = patch_builtin
    interpreter._convert_float = convert_float
    interpreter.InterpreterBuilder.create_dot = create_dot
    np.seterr(over="ignore")  # of exp


if not torch.cuda.is_available():
    correct_interpreter()

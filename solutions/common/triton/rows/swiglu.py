"""swiglu: the activation, h = s * (up + offset), where s = gate * sigmoid(alpha * gate).

The kernels that have fp32 sums of gate and up call it.

Alpha, offset and clamps are the definition's. With a limit, up is kept within +-limit, and gate, or
s where that is clamped instead, is at most limit. NaN stays NaN.
"""

import torch
import triton
import triton.language as tl

from ...host import problem

# the definition's numbers, as constants that kernels may read
LIMIT = tl.constexpr(problem.SWIGLU_LIMIT)  # 0: none
ALPHA = tl.constexpr(problem.SWIGLU_ALPHA)
UP_OFFSET = tl.constexpr(problem.SWIGLU_UP_OFFSET)
CLAMP_AFTER_SILU = tl.constexpr(problem.CLAMP_AFTER_SILU)


@triton.jit
def at_most(x, limit):
    """Return the smaller of x and limit; NaN where x is NaN."""
    return tl.minimum(x, limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def swiglu(gate, up):
    """Return h of fp32 gate and up, of any shape.

    A definition without alpha, offset and limit has silu(gate) * up alone.
    """
    if LIMIT > 0:
        up = -at_most(-at_most(up, LIMIT), LIMIT)
        if not CLAMP_AFTER_SILU:
            gate = at_most(gate, LIMIT)
    exponent = -gate
    if ALPHA != 1:
        exponent = exponent * ALPHA
    s = gate / (1.0 + tl.exp(exponent))
    if CLAMP_AFTER_SILU:
        s = at_most(s, LIMIT)
    if UP_OFFSET != 0:
        up += UP_OFFSET
    return s * up


def swiglu_ref(gate, up):
    """Compute `swiglu` in plain torch, for tests."""
    most = problem.SWIGLU_LIMIT or float("inf")
    if not problem.CLAMP_AFTER_SILU:
        gate = gate.clamp(max=most)

    s = gate * torch.sigmoid(problem.SWIGLU_ALPHA * gate)
    if problem.CLAMP_AFTER_SILU:
        s = s.clamp(max=most)

    up = up.clamp(-most, most)
    return s * (up + problem.SWIGLU_UP_OFFSET)

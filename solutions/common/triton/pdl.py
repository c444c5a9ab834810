"""pdl: programmatic dependent launch of Triton kernels."""

import triton
import triton.language as tl


@triton.jit
def pdl_wait(PDL: tl.constexpr):
    """Before a kernel's first load: what the preceding kernel wrote is visible then, and the next
    one may start.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

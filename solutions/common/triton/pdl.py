"""pdl: programmatic dependent launch (PDL) of Triton kernels, which may start before the preceding
kernel has ended.
"""

import triton
import triton.language as tl


@triton.jit
def pdl_wait(PDL: tl.constexpr):
    """Wait until what the preceding kernel wrote is visible, then let the next kernel start.

    A kernel calls it before its first load. Without PDL it does nothing.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

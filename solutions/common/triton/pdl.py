"""pdl: programmatic dependent launch of Triton kernels."""

import triton
import triton.language as tl


@triton.jit
def pdl_wait(PDL: tl.constexpr):
    """Run before a kernel's first load: what the preceding kernel wrote is visible after it.

    The next kernel may start then.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

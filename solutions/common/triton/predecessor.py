"""predecessor: programmatic dependent launch of the Triton kernels."""

import triton
import triton.language as tl


@triton.jit
def wait_for_predecessor(PDL: tl.constexpr):
    """Before a kernel's first load: what the kernel before it wrote is visible then, and the next one may start."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

"""proxy_fence: rows that cp.async put into shared memory, made visible to wgmma.

wgmma reads shared memory through the async proxy, to which cp.async does not belong: between the wait for the rows and
the product PTX wants `fence.proxy.async`. Triton 3.6 puts one where it stores rows itself, not behind cp.async. Seen in
what it compiles for sm_90; for sm_100 its pipeline issues the product ahead of the fence, which then does nothing.
"""

import triton
import triton.language as tl
from triton import knobs

COMPILED = tl.constexpr(not knobs.runtime.interpret)


@triton.jit
def proxy_fence(k):
    """Stands between the loads of a K step and its first product. k: the step; a number that keeps it in the loop."""
    if COMPILED:
        tl.inline_asm_elementwise(
            "fence.proxy.async.shared::cta; mov.b32 $0, $1;", "=r,r", [k], dtype=tl.int32, is_pure=False, pack=1
        )

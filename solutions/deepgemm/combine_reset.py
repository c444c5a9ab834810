"""combine_reset: the last stage: the shared combine (common/triton/rows), and zeroing the counters.

The counters of rows per expert (counters.py) have to be zero when the next call begins. Nothing
reads them after this stage, so its program 0 zeroes them, which saves a launch.

Map of the kernel: as combine_kernel, one program a (token, BLOCK columns).
"""

import triton
import triton.language as tl

from ..common.triton.pdl import pdl_wait
from ..common.triton.rows.combine import combine_kernel
from ..common.triton.rows.route import SLOTS, TOP_K
from .gather import BINS, E_LOCAL, H
from .pairs import pointers


@triton.jit
def combine_reset_kernel(
    y_ptr,  # [total, H] bf16
    pair_ptr,  # [4, T, TOP_K] int32
    output_ptr,  # [T, H] bf16, written
    count_ptr,  # [E_LOCAL] int32, zeroed
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    pdl_wait(PDL)
    _, weight_ptr, row_ptr, _ = pointers(pair_ptr, tl.num_programs(0) * TOP_K)
    combine_kernel(
        y_ptr,
        row_ptr,
        weight_ptr,
        output_ptr,
        0,
        H,
        H,
        TOP_K,
        BLOCK,
        BRANCH=True,
        SLOTS=SLOTS,
        PDL=False,
    )
    if tl.program_id(0) + tl.program_id(1) == 0:
        local_expert = tl.arange(0, BINS)
        tl.store(
            count_ptr + local_expert,
            tl.zeros((BINS,), tl.int32),
            mask=local_expert < E_LOCAL,
        )


def combine_reset(scratch, output):
    """Write the sum of each token's weighed rows of y into output [T, H] bfloat16; zero the counts.

    scratch: what `scratch_of` returned for the call.
    """
    num_tokens = len(output)
    pdl = output.device.type != "cpu"
    # for few tokens more programs, for many more loads each
    few = num_tokens <= 64
    block = 512 if few else 1024
    warps = 4 if few else 1
    blocks = -(-H.value // block)
    combine_reset_kernel[(num_tokens, blocks)](
        scratch.views.y,
        scratch.views.pairs,
        output,
        scratch.counts,
        BLOCK=block,
        PDL=pdl,
        num_warps=warps,
        launch_pdl=pdl,
    )

"""combine_reset: every token gathers its rows, weighs them and sums in fp32; the experts' counters become zero.

As the shared combine (whose plain statement is this one's too), over all columns at once, but for the counters, which
nobody reads any more, and for its start before gemm2 has ended.

Map of the kernel: one program a (token, BLOCK columns), which reads rows and weights of all its experts at once and
branches over those that are elsewhere: most are. Program 0 of the tokens zeroes the counters.
"""

import triton
import triton.language as tl

from .common.host.problem import HIDDEN_SIZE, NUM_LOCAL_EXPERTS, TOP_K
from .common.triton.combine import combine_kernel
from .common.triton.pdl import pdl_wait
from .pairs import pointers
from .prepare import prepare


@triton.jit
def combine_reset_kernel(
    y_ptr,  # [total, H] bf16
    pair_ptr,  # [4, T, TOP_K] int32
    output_ptr,  # [T, H] bf16, written
    count_ptr,  # [E_LOCAL] int32, zeroed
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,  # TOP_K, or the next power of two
    BLOCK: tl.constexpr,
    E_LOCAL: tl.constexpr,
    BINS: tl.constexpr,  # E_LOCAL, or the next power of two
    PDL: tl.constexpr,
):
    pdl_wait(PDL)
    _, weight_ptr, row_ptr, _ = pointers(pair_ptr, tl.num_programs(0) * TOP_K)
    combine_kernel(y_ptr, row_ptr, weight_ptr, output_ptr, 0, H, H, TOP_K, BLOCK, True, SLOTS, False)
    if tl.program_id(0) + tl.program_id(1) == 0:
        local_expert = tl.arange(0, BINS)
        tl.store(count_ptr + local_expert, tl.zeros((BINS,), tl.int32), mask=local_expert < E_LOCAL)


def prepare_combine_reset(num_tokens, device):
    """A function start(stream, y, pairs, output, counts): sum each token's weighed rows, and zero the counters.

    y: [..., H] bfloat16; pairs: [4, T, TOP_K] int32 (pairs.py), of which weights and rows are read; output: [T, H]
    bfloat16, all of it written; counts: [E_local] int32.
    """
    pdl = device.type != "cpu"
    block, warps = (512, 4) if num_tokens <= 64 else (1024, 1)  # for few tokens more programs, for many more loads each
    return prepare(
        combine_reset_kernel,
        device,
        (num_tokens, -(-HIDDEN_SIZE // block), 1),
        (),
        H=HIDDEN_SIZE,
        TOP_K=TOP_K,
        SLOTS=1 << (TOP_K - 1).bit_length(),
        BLOCK=block,
        E_LOCAL=NUM_LOCAL_EXPERTS,
        BINS=1 << (NUM_LOCAL_EXPERTS - 1).bit_length(),
        PDL=pdl,
        num_warps=warps,
        launch_pdl=pdl,
    )

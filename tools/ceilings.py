"""What this GPU reaches: a read of its memory, and dense GEMMs; for CEILINGS in
operators/roofline.py. Needs 10 GiB.
"""

from functools import partial

import torch
import triton
import triton.language as tl

WORDS, SIZE, TURNS, CALLS = 1 << 31, 8192, 7, 20
READERS = [
    (4096, 8, 8),
    (8192, 8, 8),
    (8192, 16, 16),
    (16384, 4, 16),
]  # words at once, how often, warps


@triton.jit
def read(words, found, BLOCK: tl.constexpr, LOOP: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK * LOOP
    total = tl.zeros((BLOCK,), tl.int32)
    for step in range(LOOP):
        total |= tl.load(words + first + step * BLOCK + tl.arange(0, BLOCK))
    tl.store(found + tl.program_id(0), tl.sum(total))


def seconds(call) -> float:
    """Of a call, in a burst too short for the GPU to slow down for its power limit."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / CALLS


words, one = torch.zeros(WORDS, dtype=torch.int32, device="cuda"), torch.ones((), device="cuda")
(a, b), (a8, b8) = (
    torch.randn(2, SIZE, SIZE, device="cuda").to(of) for of in (torch.bfloat16, torch.float8_e4m3fn)
)
fp8 = partial(torch._scaled_mm, a8, b8.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
calls = {"fp8": (fp8, 2 * SIZE**3), "bf16": (partial(torch.mm, a, b.t()), 2 * SIZE**3)}
for block, loop, warps in READERS:
    blocks = WORDS // (block * loop)
    call = partial(
        read[(blocks,)], words, words.new_empty(blocks), BLOCK=block, LOOP=loop, num_warps=warps
    )
    calls[f"bytes, {block} x {loop} words, {warps} warps"] = call, 4 * WORDS
most = dict.fromkeys(calls, 0.0)
for name, (call, work) in [*calls.items()] * (TURNS + 1):  # the first turn compiles
    most[name] = max(most[name], work / seconds(call))
print(
    torch.cuda.get_device_name(),
    *(f"{name}: {rate:.4g} /s" for name, rate in most.items()),
    sep="\n",
)

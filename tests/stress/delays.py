"""CUDA sources whose CTAs, and whose waits for barriers, are delayed at random.

For test builds alone: the packed sources are changed as text, so that nothing of it is in the
solution's machine code. A CTA waits behind `pdl_wait()`, a warp now and then behind `mbar_wait()`
and before an arrival, by a hash of the clock: every order that the barriers allow comes up.
"""

from packed_sources import with_one_replaced

HEADER = "pdl.cuh"
DELAY = """
// ---- test build: delays at random ----

__device__ __forceinline__ unsigned delay_hash() {
  unsigned x = (unsigned)clock64() ^ blockIdx.x * 0x9e3779b9u ^ threadIdx.x / 32 * 0x85ebca6bu;
  x = (x ^ x >> 15) * 0x2c1b3c6du;
  return x ^ x >> 12;
}
// One time in `one_in` a delay of up to `most` nanoseconds, the same for the warp's active lanes.
__device__ __forceinline__ void delay_at_random(unsigned one_in, unsigned most) {
  const unsigned hash = __shfl_sync(__activemask(), delay_hash(), __ffs(__activemask()) - 1);
  if (hash % one_in == 0) __nanosleep(hash / one_in % most);
}
"""
AFTER_PDL_WAIT = "delay_at_random(2, 20000);"
AFTER_MBAR_WAIT = "delay_at_random(64, 2000);"
PDL_WAIT = (
    "__device__ __forceinline__ void pdl_wait() "
    '{ asm volatile("griddepcontrol.wait;" ::: "memory"); }'
)
MBAR_WAIT = "__device__ __forceinline__ void mbar_wait(uint64_t* bar, int phase) {"


def can_be_delayed(solution):
    """Whether a packed solution has the barriers that are delayed."""
    paths = [file.path for file in solution.sources]
    return any(path.endswith(f"/{HEADER}") for path in paths) and any(
        path.endswith("/barrier.cuh") for path in paths
    )


def delayed(texts):
    """Return path -> text of a solution's files with delays in them."""
    changed = dict(texts)
    for path, text in texts.items():
        if path.endswith("/pdl.cuh"):
            changed[path] = delayed_pdl(text)
        elif path.endswith("/barrier.cuh"):
            changed[path] = delayed_barrier(text)
    return changed


def delayed_pdl(text):
    """Return the text of pdl.cuh in which a CTA's warps wait behind pdl_wait()."""
    at_once = PDL_WAIT.replace("pdl_wait", "pdl_wait_at_once")
    wrapped = (
        "__device__ __forceinline__ void pdl_wait() {\n"
        f"  pdl_wait_at_once();\n  {AFTER_PDL_WAIT}\n}}"
    )
    return with_one_replaced(text, PDL_WAIT, f"{DELAY}\n{at_once}\n{wrapped}")


def delayed_barrier(text):
    """Return the text of barrier.cuh in which a warp waits behind mbar_wait() now and then: a
    producer refills late, a consumer reads late.
    """
    text = with_one_replaced(
        text,
        '#include "smem_addr.cuh"\n',
        '#include "pdl.cuh"\n#include "smem_addr.cuh"\n',
    )
    at_once = MBAR_WAIT.replace("mbar_wait", "mbar_wait_at_once")
    text = with_one_replaced(text, MBAR_WAIT, at_once)
    wrapped = (
        f"{MBAR_WAIT}\n  mbar_wait_at_once(bar, phase);\n  {AFTER_MBAR_WAIT}\n}}\n\n"
    )
    return with_one_replaced(text, "// ---- release:", f"{wrapped}// ---- release:")

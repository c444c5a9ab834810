"""fp8_to_fp16: convert E4M3 to fp16 inside a Triton kernel, exactly.

The many_tokens GEMMs call it. Where the GPU has no instruction for it (before sm_89), it is done by
integer instructions.
"""

import triton
import triton.language as tl

# PTX for four bytes of E4M3, whose bits are seeeemmm. Each becomes the upper byte of an fp16, then
# the seven bits after the sign move right by one. The exponent bias of fp16 is larger by 8, so the
# result is 2^-8 times the value, also for subnormal numbers. NaN becomes 480 (2^-8 times it).
UNPACK = tl.constexpr("""{
.reg .b32 low, high, sign;
prmt.b32 low, $2, 0, 0x1404;
prmt.b32 high, $2, 0, 0x3424;
and.b32 sign, low, 0x80008000;
shr.u32 low, low, 1;
lop3.b32 $0, low, 0x3f803f80, sign, 0xea;
and.b32 sign, high, 0x80008000;
shr.u32 high, high, 1;
lop3.b32 $1, high, 0x3f803f80, sign, 0xea;
}""")
UNPACKED_SCALE = 256.0  # what the result of UNPACK has to be multiplied with


@triton.jit
def fp8_to_fp16(values):
    """Return fp8 values in fp16. Where they come as uint8 bytes, the result is 2^-8 times them."""
    if values.dtype == tl.uint8:
        return tl.inline_asm_elementwise(
            UNPACK, "=r,=r,r", [values], dtype=tl.float16, is_pure=True, pack=4
        )
    else:
        return values.to(tl.float16)

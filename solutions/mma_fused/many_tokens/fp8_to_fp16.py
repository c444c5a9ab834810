"""fp8_to_fp16: E4M3 values as fp16 inside a Triton kernel, exactly.

By integers where there is no instruction.
"""

import triton
import triton.language as tl

# Four bytes seeeemmm: each to the upper byte of an fp16, then the seven bits after the sign move by
# one. fp16 has 8 more of exponent bias, so what comes out, times 2^8, is the value: subnormal
# numbers, too; NaN becomes 480.
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
UNPACKED_SCALE = 256.0  # the value over what unpacking gives


@triton.jit
def fp8_to_fp16(values):
    """Return fp16 of values in fp8, or 2^-8 times the values of which the bytes come, as uint8."""
    if values.dtype == tl.uint8:
        return tl.inline_asm_elementwise(
            UNPACK, "=r,=r,r", [values], dtype=tl.float16, is_pure=True, pack=4
        )
    else:
        return values.to(tl.float16)

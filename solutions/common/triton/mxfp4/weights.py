"""weights: load a tile of MXFP4 weights as bf16, which holds all of their values exactly.

The GEMMs with MXFP4 weights call `weight_tile`. A K block is 128 of K: 64 bytes of a row and four
scales. The low halves of the bytes are the weights of even K, the high halves those of odd K. They
are kept apart, and a GEMM multiplies either with the even or odd columns of x: nothing is shuffled.
"""

import torch
import triton
import triton.language as tl

BLOCK = 128
GROUP = 32
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@triton.jit
def e2m1(code):
    """Return the fp32 value of an E2M1 code: 4 bits, a sign, two of exponent, one of mantissa.

    Moved to where fp32 has its exponent and mantissa, the bits are 2^-126 times the value, also for
    subnormal codes.
    """
    bits = ((code & 7) << 22) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126


@triton.jit
def e8m0(byte):
    """Return 2^(byte - 127) in fp32, which is subnormal for 0; NaN for 255."""
    bits = tl.where(byte == 0, 0x00400000, byte << 23)
    bits = tl.where(byte == 255, 0x7FC00000, bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def load_bytes(ptrs):
    """Return bytes, which are int8 in memory, as int32 from 0 to 255."""
    return tl.load(ptrs).to(tl.int32) & 255


@triton.jit
def weight_tile(w_ptrs, scale_ptrs):
    """Return the weights of a K block at even K and those at odd K, each bf16 [rows, 64].

    w_ptrs: pointers [rows, 64] to the bytes; scale_ptrs: to the scale of each byte.
    """
    packed = load_bytes(w_ptrs)
    scale = e8m0(load_bytes(scale_ptrs))
    even = e2m1(packed & 15) * scale
    odd = e2m1(packed >> 4) * scale
    return even.to(tl.bfloat16), odd.to(tl.bfloat16)


def dequantised_ref(w, scale):
    """Return weights [..., K / 2] times scale [..., K / 32] in fp32 [..., K], in plain torch.

    Both may have any dtype of one byte.
    """
    packed = w.view(torch.uint8).int()
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    values = torch.tensor([*E2M1, *(-value for value in E2M1)], device=w.device)[codes]
    exponent = scale.view(torch.uint8).double()
    factor = torch.where(exponent == 255, torch.nan, torch.exp2(exponent - 127))
    return (values.double() * factor.repeat_interleave(GROUP, -1)).float()

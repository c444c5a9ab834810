"""weights: a tile of MXFP4 weights as bf16, which holds every one of them exactly.

A K block is 128 of K: 64 bytes of a row and four scales. The low halves of the bytes are the even
K, the high ones the odd, and the two make two products, with x split likewise: nothing is shuffled.
"""

import torch
import triton
import triton.language as tl

BLOCK = 128
GROUP = 32
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@triton.jit
def e2m1(code):
    """The value of 4 bits in fp32: sign, two of exponent, one of mantissa.

    In fp32's place they are 2^-126 of the value, the subnormal ones too.
    """
    bits = ((code & 7) << 22) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126


@triton.jit
def e8m0(byte):
    """2^(byte - 127) in fp32, which is subnormal for 0; NaN for 255."""
    bits = tl.where(byte == 0, 0x00400000, byte << 23)
    bits = tl.where(byte == 255, 0x7FC00000, bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def load_bytes(ptrs):
    """Bytes that are int8 in memory, as int32 from 0 to 255."""
    return tl.load(ptrs).to(tl.int32) & 255


@triton.jit
def weight_tile(w_ptrs, scale_ptrs):
    """The weights of a K block at even and at odd K, bf16 [rows, 64] each.

    w_ptrs: of the bytes, [rows, 64]; scale_ptrs: of each byte's scale.
    """
    packed = load_bytes(w_ptrs)
    scale = e8m0(load_bytes(scale_ptrs))
    even = e2m1(packed & 15) * scale
    odd = e2m1(packed >> 4) * scale
    return even.to(tl.bfloat16), odd.to(tl.bfloat16)


def dequantised_ref(w, scale):
    """Plain statement: bytes [..., K / 2] and [..., K / 32] of any byte dtype -> fp32 [..., K]."""
    packed = w.view(torch.uint8).int()
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    values = torch.tensor([*E2M1, *(-value for value in E2M1)], device=w.device)[codes]
    exponent = scale.view(torch.uint8).double()
    factor = torch.where(exponent == 255, torch.nan, torch.exp2(exponent - 127))
    return (values.double() * factor.repeat_interleave(GROUP, -1)).float()

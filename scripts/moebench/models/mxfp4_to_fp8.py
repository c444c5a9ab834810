"""MXFP4 weights as FP8 with a scale per block of 128 x 128: the same values to the last bit, or
refused.

It needs nothing but torch, so that what loads weights can call it expert by expert.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

GROUP = 32  # columns with one scale in MXFP4
BLOCK = 128  # rows and columns with one scale in FP8
SCALE_BIAS = 127
NAN_SCALE = 255
E2M1 = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
)  # by a code's three low bits; the fourth is the sign

# By E2M1's magnitudes: the largest and the least power of two times which they are E4M3, which ends
# at 448 and whose smallest step is 2^-9. Zero may have any.
ANY = 1000
LARGEST = (ANY, 9, 8, 8, 7, 7, 6, 6)
LEAST = (-ANY, -8, -9, -8, -10, -9, -11, -10)
# So whatever the weights of a block are, they are exact if its scales are no further apart.
MOST_SPAN = min(LARGEST[1:]) - max(LEAST[1:])
LEAST_NORMAL = -126  # of float32; a smaller scale would be flushed to zero by some kernels


class NotExact(ValueError):
    """A block of MXFP4 that no FP8 block has the values of."""


@dataclass(frozen=True)
class Fp8Matrix:
    """weights: [R, K] float8_e4m3fn. scales: [R / 128, K / 128] float32, powers of two."""

    weights: torch.Tensor
    scales: torch.Tensor


def experts_to_fp8(
    experts: Iterable[tuple[torch.Tensor, torch.Tensor]], name: str = "weights"
) -> Iterator[Fp8Matrix]:
    """Convert a matrix of each expert, one at a time.

    experts: pairs as `to_fp8` takes them, which may be read as they are asked for. name: of the
    matrix, for messages. Raises NotExact that names the expert and the block.
    """
    for number, (packed, scales) in enumerate(experts):
        yield to_fp8(packed, scales, f"expert {number}, {name}")


def to_fp8(packed: torch.Tensor, scales: torch.Tensor, name: str = "weights") -> Fp8Matrix:
    """Convert one matrix.

    packed: [R, K / 2] bytes, two E2M1 codes each, the low half first. scales: [R, K / 32] bytes,
    less 127 the exponent of two. R and K are multiples of 128. Raises NotExact that names the
    first block whose values no FP8 block has, and ValueError for other shapes.
    """
    check_shapes(packed, scales, name)
    packed = packed.view(torch.uint8)
    scales = scales.view(torch.uint8)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).int()
    exponents = scales.int() - SCALE_BIAS

    block_exponents = exponents_of_blocks(codes & 7, scales, name)
    of_groups = block_exponents.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK // GROUP, 1)
    shifts = (exponents - of_groups).clamp(min(LEAST[1:]), max(LARGEST[1:]))  # a group of zeros

    table = torch.tensor([*E2M1, *(-value for value in E2M1)], device=packed.device)
    groups = table[codes].unflatten(-1, (-1, GROUP))
    values = (groups * power_of_two(shifts).unsqueeze(-1)).flatten(-2)
    return Fp8Matrix(values.to(torch.float8_e4m3fn), power_of_two(block_exponents))


def check_shapes(packed: torch.Tensor, scales: torch.Tensor, name: str) -> None:
    """Raise ValueError unless these are bytes of a matrix whose sides are multiples of 128."""
    rows, half_columns = packed.shape
    columns = 2 * half_columns
    if packed.element_size() != 1 or scales.element_size() != 1:
        raise ValueError(f"{name}: got {packed.dtype} and {scales.dtype}, want bytes")
    if rows % BLOCK or columns % BLOCK:
        raise ValueError(f"{name}: got {rows} x {columns}, want multiples of {BLOCK}")
    if scales.shape != (rows, columns // GROUP):
        got = list(scales.shape)
        raise ValueError(f"{name}: got scales {got}, want {[rows, columns // GROUP]}")


def exponents_of_blocks(magnitudes: torch.Tensor, scales: torch.Tensor, name: str) -> torch.Tensor:
    """Return the exponent of each FP8 block's scale, [R / 128, K / 128] int32.

    It is the least at which the block's largest value is E4M3. magnitudes: [R, K], E2M1 codes
    without their signs. Raises NotExact where no exponent holds all values of a block.
    """
    groups = magnitudes.unflatten(-1, (-1, GROUP))
    largest = torch.tensor(LARGEST, dtype=torch.int32, device=scales.device)[groups].amin(-1)
    least = torch.tensor(LEAST, dtype=torch.int32, device=scales.device)[groups].amax(-1)
    exponents = scales.int() - SCALE_BIAS

    lower = in_blocks(exponents - largest).amax((1, 3))
    upper = in_blocks(exponents - least).amin((1, 3))
    has_nan = in_blocks(scales == NAN_SCALE).any(3).any(1)
    refused = has_nan | (lower > upper)
    if refused.any():
        raise NotExact(refusal(refused, scales, name))

    exponents = torch.minimum(lower.clamp(min=LEAST_NORMAL), upper)
    is_zero = upper > ANY // 2
    return exponents.masked_fill(is_zero, 0)


def refusal(refused: torch.Tensor, scales: torch.Tensor, name: str) -> str:
    """Return why the first of these blocks cannot be FP8."""
    row, column = refused.nonzero()[0].tolist()
    where = f"{name}: block ({row}, {column}) of {BLOCK} x {BLOCK}"
    groups = BLOCK // GROUP
    rows = scales[row * BLOCK : (row + 1) * BLOCK]
    block = rows[:, column * groups : (column + 1) * groups].int()
    if (block == NAN_SCALE).any():
        return f"{where} has a scale that is no number"
    lowest = block.min().item() - SCALE_BIAS
    highest = block.max().item() - SCALE_BIAS
    return (
        f"{where} has scales from 2^{lowest} to 2^{highest}, {highest - lowest} powers of two "
        f"apart, want {MOST_SPAN} at most for FP8"
    )


def spans(scales: torch.Tensor) -> torch.Tensor:
    """Return how many powers of two a block's scales are apart, [R / 128, K / 128] int32.

    Up to MOST_SPAN a block is exact whatever its weights; -1 where a scale is no number. scales:
    [R, K / 32] bytes.
    """
    blocks = in_blocks(scales.view(torch.uint8))
    apart = blocks.amax((1, 3)).int() - blocks.amin((1, 3)).int()
    has_nan = (blocks == NAN_SCALE).any(3).any(1)
    return apart.masked_fill(has_nan, -1)


def in_blocks(of_groups: torch.Tensor) -> torch.Tensor:
    """Return [R, K / 32] as [R / 128, 128, K / 128, 4]."""
    return of_groups.unflatten(1, (-1, BLOCK // GROUP)).unflatten(0, (-1, BLOCK))


def power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """Return 2^exponents in float32, of int32 from -126 to 127, by its bits: exp2 may round."""
    return ((exponents + SCALE_BIAS) << 23).view(torch.float32)

"""Convert MXFP4 weights to FP8 with a scale per block of 128 x 128: the same values to the last
bit, or none.

MXFP4 weights are E2M1 codes of 4 bits, with an E8M0 scale, a power of two in a byte, for each 32
along K. A block of FP8 has a single scale, so a code becomes the E4M3 number

    value of the code * 2^(exponent of its group of 32 - exponent of the block)

if there is an exponent of the block at which all of these are E4M3. This module needs nothing but
torch, so that any loader of weights can call `to_fp8`, or `experts_to_fp8` for all experts.
scales.py calls `spans`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

GROUP = 32  # columns with one scale in MXFP4
BLOCK = 128  # rows and columns with one scale in FP8
SCALE_BIAS = 127
NAN_EXPONENT = 255 - SCALE_BIAS  # of the scale 255, which is NaN
# of E2M1, by the three low bits of a code
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = (*MAGNITUDES, *(-value for value in MAGNITUDES))

# For each of E2M1's magnitudes the largest and the least power of two whose product with it is a
# number of E4M3, which ends at 448 and whose smallest step is 2^-9. With zero any product is one.
ANY = 1000
LARGEST = (ANY, 9, 8, 8, 7, 7, 6, 6)
LEAST = (-ANY, -8, -9, -8, -10, -9, -11, -10)
# A block is exact whatever its weights if its scales are at most so many powers of two apart.
MOST_SPAN = min(LARGEST) - max(LEAST)
LEAST_NORMAL = -126  # exponent of float32; some kernels take a smaller scale for zero


class NotExact(ValueError):
    """Raised for a block of MXFP4 whose values no block of FP8 can have."""


@dataclass(frozen=True)
class Fp8Matrix:
    """A matrix in FP8. weights: [R, K] float8_e4m3fn. scales: [R / 128, K / 128] float32, powers of
    two.
    """

    weights: torch.Tensor
    scales: torch.Tensor


def experts_to_fp8(
    experts: Iterable[tuple[torch.Tensor, torch.Tensor]], name: str = "weights"
) -> Iterator[Fp8Matrix]:
    """Yield one matrix of each expert, converted.

    experts: (packed, scales) of each expert's matrix, as `to_fp8` takes them; they are read one at
    a time. name: of the matrix, for messages. Raises NotExact, which names the expert and the
    block.
    """
    for number, (packed, scales) in enumerate(experts):
        yield to_fp8(packed, scales, f"expert {number}, {name}")


def to_fp8(
    packed: torch.Tensor, scales: torch.Tensor, name: str = "weights"
) -> Fp8Matrix:
    """Return one matrix, converted.

    packed: [R, K / 2] bytes, two E2M1 codes each, the low half first. scales: [R, K / 32] bytes of
    E8M0: the byte less 127 is the exponent of two. R and K are multiples of 128. Raises NotExact
    that names the first block whose values no FP8 block has, and ValueError for other shapes.
    """
    check_shapes(packed, scales, name)

    packed = packed.view(torch.uint8)
    low = packed & 15
    high = packed >> 4
    pairs = torch.stack([low, high], dim=2)
    codes = pairs.flatten(1).int()
    exponents = scales.view(torch.uint8).int()
    exponents -= SCALE_BIAS

    block_exponents = exponents_of_blocks(codes, exponents, name)
    by_row = block_exponents.repeat_interleave(BLOCK, dim=0)
    by_group = by_row.repeat_interleave(BLOCK // GROUP, dim=1)

    # The powers of two by which groups' codes are multiplied. The scale of a group of zeros may be
    # any; its power is cut to what other groups can have.
    shifts = exponents - by_group
    shifts.clamp_(min(LEAST[1:]), max(LARGEST[1:]))
    factors = power_of_two(shifts)

    table = torch.tensor(VALUES, device=packed.device)
    groups = table[codes].unflatten(1, (-1, GROUP))
    values = groups * factors.unsqueeze(2)
    weights = values.flatten(1).to(torch.float8_e4m3fn)
    return Fp8Matrix(weights, power_of_two(block_exponents))


def check_shapes(packed: torch.Tensor, scales: torch.Tensor, name: str) -> None:
    """Raise ValueError unless these are bytes of a matrix whose sides are multiples of 128."""
    if packed.element_size() != 1 or scales.element_size() != 1:
        raise ValueError(f"{name}: got {packed.dtype} and {scales.dtype}, want bytes")

    rows, half = packed.shape
    columns = 2 * half
    if rows % BLOCK or columns % BLOCK:
        raise ValueError(f"{name}: got {rows} x {columns}, want multiples of {BLOCK}")

    got = list(scales.shape)
    want = [rows, columns // GROUP]
    if got != want:
        raise ValueError(f"{name}: got scales {got}, want {want}")


def exponents_of_blocks(
    codes: torch.Tensor, exponents: torch.Tensor, name: str
) -> torch.Tensor:
    """Return the exponent of each FP8 block's scale, [R / 128, K / 128] int32.

    It is the least at which all values of the block are E4M3; 0 for a block of zeros. codes: [R,
    K]. exponents: of the groups' scales, [R, K / 32]. Raises NotExact where there is none.
    """
    magnitudes = codes & 7
    groups = magnitudes.unflatten(1, (-1, GROUP))
    largest = by_magnitude(LARGEST, groups).amin(2)
    least = by_magnitude(LEAST, groups).amax(2)

    lower = in_blocks(exponents - largest).amax((1, 3))
    upper = in_blocks(exponents - least).amin((1, 3))
    refused = lower > upper
    refused |= has_nan(exponents)
    if refused.any():
        raise NotExact(refusal(refused, exponents, name))

    block_exponents = lower.clamp(min=LEAST_NORMAL)
    block_exponents = torch.minimum(block_exponents, upper)
    is_zero = upper > ANY // 2
    return block_exponents.masked_fill(is_zero, 0)


def by_magnitude(values: tuple[int, ...], magnitudes: torch.Tensor) -> torch.Tensor:
    """Return the value of each code's magnitude, int32. values: LARGEST or LEAST."""
    table = torch.tensor(values, dtype=torch.int32, device=magnitudes.device)
    return table[magnitudes]


def has_nan(exponents: torch.Tensor) -> torch.Tensor:
    """Return which blocks have a scale that is no number, [R / 128, K / 128] bool."""
    is_nan = exponents == NAN_EXPONENT
    return in_blocks(is_nan).any(3).any(1)


def refusal(refused: torch.Tensor, exponents: torch.Tensor, name: str) -> str:
    """Return why the first of the refused blocks cannot be FP8. exponents: of all groups."""
    row, column = refused.nonzero()[0].tolist()
    block = in_blocks(exponents)[row, :, column]
    lowest = block.min().item()
    highest = block.max().item()

    where = f"{name}: block ({row}, {column}) of {BLOCK} x {BLOCK}"
    if highest == NAN_EXPONENT:
        return f"{where} has a scale that is no number"
    return (
        f"{where} has scales from 2^{lowest} to 2^{highest}, {highest - lowest} powers of two "
        f"apart, want {MOST_SPAN} at most for FP8"
    )


def spans(scales: torch.Tensor) -> torch.Tensor:
    """Return by how many powers of two each block's scales are apart, [R / 128, K / 128] int32; -1
    where one of them is no number. scales: [R, K / 32] bytes.
    """
    exponents = scales.view(torch.uint8).int()
    exponents -= SCALE_BIAS
    blocks = in_blocks(exponents)
    highest = blocks.amax((1, 3))
    lowest = blocks.amin((1, 3))
    apart = highest - lowest
    return apart.masked_fill(has_nan(exponents), -1)


def in_blocks(groups: torch.Tensor) -> torch.Tensor:
    """Return a view [R / 128, 128, K / 128, 4] of [R, K / 32]: a block's rows and groups are the
    second and the fourth axis.
    """
    columns = groups.unflatten(1, (-1, BLOCK // GROUP))
    return columns.unflatten(0, (-1, BLOCK))


def power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """Return 2^exponents in float32. exponents: int32 from -126 to 127."""
    # made of the bits of a float, as torch.exp2 may round
    biased = exponents + SCALE_BIAS
    bits = biased << 23
    return bits.view(torch.float32)

"""Tell from a checkpoint's scales whether its experts in MXFP4 are exact as FP8: `moebench model
--check-scales`.

MXFP4 has a scale for 32 weights, FP8 here a scale for a block of 128 x 128. If the scales in a
block are not too far apart, all weights of the block are exact in FP8. So only scales are read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch

from moebench.core.errors import UserError
from moebench.models.checkpoint import Checkpoint
from moebench.models.mxfp4_to_fp8 import BLOCK, GROUP, MOST_SPAN, spans

# Names that checkpoints give to tensors with the scales of one expert, or of all in a layer
SCALE_NAME = re.compile(r"\.experts\..*(\.scale|weight_scale|proj_scales?)(_inv)?$")
NOT_CERTAIN = (
    f"whose scales are further apart than 2^{MOST_SPAN}: exact only if the weights at the ends "
    "leave room, which moebench.models.mxfp4_to_fp8 says"
)

Facts = list[tuple[str, str]]  # rows for the terminal, each a name and a text


@dataclass(frozen=True)
class Scales:
    """The scales of one matrix of an expert.

    name: of the tensor, followed by the expert's number if the tensor holds several experts'.
    exponents: [R, K / 32] bytes of E8M0.
    """

    name: str
    exponents: torch.Tensor


@dataclass
class Tally:
    """Counts of the blocks of 128 x 128 in a checkpoint's matrices.

    exact: blocks that are exact as FP8 whatever their weights. nan: blocks with a scale that is
    NaN. widest: by how many powers of two the scales of a block are apart at most. widest_at: the
    name of that block.
    """

    matrices: int = 0
    blocks: int = 0
    exact: int = 0
    nan: int = 0
    widest: int = -1
    widest_at: str = ""

    def add(self, scales: Scales) -> None:
        """Count the blocks of one matrix."""
        block_spans = spans(scales.exponents)
        is_nan = block_spans < 0
        is_exact = ~is_nan & (block_spans <= MOST_SPAN)
        self.matrices += 1
        self.blocks += block_spans.numel()
        self.nan += is_nan.sum().item()
        self.exact += is_exact.sum().item()

        widest = block_spans.max().item()
        if widest > self.widest:
            row, column = (block_spans == widest).nonzero()[0].tolist()
            self.widest = widest
            self.widest_at = f"{scales.name}, block ({row}, {column})"


def check_scales(folder: Path, checkpoint: Checkpoint) -> Tally:
    """Return counts of the blocks of 128 x 128 in a checkpoint's experts, and of the exact ones.

    Of the .safetensors files in the folder, only headers and scales are read. Raises UserError
    where the folder has no scales of experts in MXFP4.
    """
    tally = Tally()
    for file in sorted(folder.glob("*.safetensors")):
        for scales in scales_in(file, checkpoint):
            tally.add(scales)
    if not tally.matrices:
        raise UserError(
            f"--check-scales: {folder} has no .safetensors file with the scales of experts in MXFP4"
        )
    return tally


def scales_in(file: Path, checkpoint: Checkpoint) -> Iterator[Scales]:
    """Yield the scales of experts in a file, one matrix at a time.

    Raises UserError for a file that is no safetensors file, and for scales whose shape is not that
    of the checkpoint's experts.
    """
    try:
        opened = safetensors.safe_open(file, framework="pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"--check-scales: {file}: {error}") from error

    with opened as tensors:
        for name in sorted(tensors.keys()):
            if not SCALE_NAME.search(name):
                continue
            shape = tensors.get_slice(name).get_shape()
            check_shape(file, name, shape, checkpoint)
            yield from matrices_of(name, tensors.get_tensor(name))


def check_shape(
    file: Path, name: str, shape: list[int], checkpoint: Checkpoint
) -> None:
    """Raise UserError unless a tensor of this shape may have scales of the checkpoint's experts."""
    hidden = checkpoint.sizes["hidden_size"]
    width = checkpoint.sizes["intermediate_size"]
    gate_or_up = [width, hidden // GROUP]
    both = [2 * width, hidden // GROUP]
    down = [hidden, width // GROUP]
    if shape[-2:] not in (gate_or_up, both, down):
        raise UserError(
            f"--check-scales: {file.name}: {name} has {shape}, want {gate_or_up}, {both} or "
            f"{down}, a scale per {GROUP} columns"
        )


def matrices_of(name: str, tensor: torch.Tensor) -> Iterator[Scales]:
    """Yield the scales of each matrix in a tensor, which is of one expert or of all of a layer.

    Raises UserError unless the scales are bytes.
    """
    if tensor.element_size() != 1:
        raise UserError(f"--check-scales: {name} has {tensor.dtype}, want bytes")
    if tensor.ndim == 2:
        yield Scales(name, tensor)
        return
    for number, exponents in enumerate(tensor.flatten(0, -3)):
        yield Scales(f"{name}, expert {number}", exponents)


def rows_of(tally: Tally) -> Facts:
    """Return a tally as rows for the terminal, each a name and a text."""
    uncertain = tally.blocks - tally.exact - tally.nan
    exact = f"{tally.blocks}, of which {tally.exact} are exact as FP8 whatever their weights"
    rows = [
        ("scales", f"of {tally.matrices} matrices of experts in MXFP4"),
        (f"blocks of {BLOCK} x {BLOCK}", exact),
    ]
    if tally.widest >= 0:
        rows.append(("furthest apart", f"2^{tally.widest} in {tally.widest_at}"))
    if uncertain:
        rows.append(("not by scales alone", f"{uncertain} blocks, {NOT_CERTAIN}"))
    if tally.nan:
        rows.append(
            ("no number", f"a scale in {tally.nan} blocks: these cannot be converted")
        )
    return rows

"""Several tensors with a row for each token as one tensor of bytes, so that one collective carries them."""

import torch


def joined(*parts: torch.Tensor) -> torch.Tensor:
    """[T, bytes] uint8 of contiguous parts [T, n]."""
    return torch.cat([part.view(torch.uint8) for part in parts], dim=1)


def parted(rows: torch.Tensor, *like: torch.Tensor) -> list[torch.Tensor]:
    """The parts again, contiguous, with the widths and dtypes of `like`."""
    found, at = [], 0
    for part in like:
        width = part.shape[1] * part.element_size()
        # a copy, also of a single row, which would be contiguous where it is and perhaps not aligned
        found.append(rows[:, at : at + width].clone(memory_format=torch.contiguous_format).view(part.dtype))
        at += width
    return found

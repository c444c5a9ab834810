"""Several tensors with a row for each token as one tensor of bytes, so that one collective carries them."""

import torch


def joined(*parts: torch.Tensor) -> torch.Tensor:
    """[T, bytes] uint8 of contiguous parts [T, n]."""
    return torch.cat([part.view(torch.uint8) for part in parts], dim=1)


def parted(rows: torch.Tensor, *like: torch.Tensor) -> list[torch.Tensor]:
    """The parts again, contiguous and aligned, with the widths and dtypes of `like`."""
    widths = [part.shape[1] * part.element_size() for part in like]
    copies = [part.clone(memory_format=torch.contiguous_format) for part in rows.split(widths, dim=1)]
    return [copy.view(part.dtype) for copy, part in zip(copies, like, strict=True)]

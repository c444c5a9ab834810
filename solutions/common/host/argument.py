"""argument: what can be said of an argument of the layer."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tensor:
    """A tensor of this shape, in which a str stands for a size that the call says.

    optional: it is left out where tokens are bfloat16.
    """

    shape: tuple
    dtype: torch.dtype
    optional: bool = False


@dataclass(frozen=True)
class Integer:
    """An int from 0 on."""

    at_most: int


@dataclass(frozen=True)
class Real:
    """Any number."""

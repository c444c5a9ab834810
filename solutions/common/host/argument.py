"""argument: the three kinds of argument that the layer has, with what each must be.

argument_table.py lists a layer's arguments with them; arguments.py checks calls against that list.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tensor:
    """A tensor of a shape and dtype.

    shape: sizes. The str "tokens of a call" stands for T, which differs from call to call.
    optional: the entry points for bfloat16 tokens do not have this argument. It is the tokens'
        scales, which bfloat16 tokens do not need.
    """

    shape: tuple
    dtype: torch.dtype
    optional: bool = False


@dataclass(frozen=True)
class Integer:
    """An int from 0 to at_most."""

    at_most: int


@dataclass(frozen=True)
class Real:
    """Any int or float."""

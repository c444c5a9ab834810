"""check_operands: the argument check of main.py's `run`.

It refuses what the kernels were not written for, before anything is launched.
"""

import torch

from ..common.host.check_tensors import check_rank, check_tensors
from .group_quantise import GROUP
from .tiles import BLOCK


def check_operands(x, weight, weight_scale, output):
    """Check the arguments of a call. This is timed with the call, hence the straight code.

    Raises:
        ValueError: dtype, rank, size, device, contiguity or 16-byte alignment of an argument is not
            what `run` takes; the message names the argument, what it got and what it wants.
    """
    check_rank("x", x, 2)
    check_rank("weight", weight, 2)

    rows, k = x.shape
    n = weight.shape[0]
    for name, size, value in (("weight", "n", n), ("x", "k", k)):
        if value == 0 or value % BLOCK:
            raise ValueError(f"{name}: {size} is {value}, want a multiple of {BLOCK}")

    wanted = (
        ("x", x, (rows, k), (torch.bfloat16,)),
        ("weight", weight, (n, k), (torch.float8_e4m3fn,)),
        ("weight_scale", weight_scale, (n, k // GROUP), (torch.int8, torch.uint8)),
        ("output", output, (rows, n), (torch.bfloat16, torch.float16)),
    )
    check_tensors(wanted, like=("x", x))

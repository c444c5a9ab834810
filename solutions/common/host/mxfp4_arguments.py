"""mxfp4_arguments: let entry points with MXFP4 experts take weights and scales of any byte dtype.

A byte of weights holds two E2M1 values, neighbours along K; a byte of scales is the E8M0 scale of
32 values along K. In a definition both are int8, engines hold uint8 or float8_e8m0fnu.
"""

from functools import wraps

import torch

from .argument_table import ROUTED_MXFP4

BYTES = (torch.uint8, torch.float8_e8m0fnu)
PACKED = (
    "gemm1_weights",
    "gemm1_weights_scale",
    "gemm2_weights",
    "gemm2_weights_scale",
)


def as_int8(layer):
    """Return an entry point that views weights and scales as int8, then calls `layer`.

    layer: what `takes(ROUTED_MXFP4)` or `checked(ROUTED_MXFP4)` of arguments.py returned.
    """

    @wraps(layer)
    def call(*arguments, **named):
        if named or len(arguments) != len(ROUTED_MXFP4):
            arguments = layer.__signature__.bind(*arguments, **named).args
        values = dict(zip(ROUTED_MXFP4, arguments, strict=True))
        for name in PACKED:
            if isinstance(values[name], torch.Tensor) and values[name].dtype in BYTES:
                values[name] = values[name].view(torch.int8)
        return layer(*values.values())

    call.__signature__ = layer.__signature__
    return call

"""mxfp4_arguments: bytes of MXFP4 experts, whatever their dtype is called.

Two E2M1 to a byte along K, and a byte of E8M0 for each 32 of K. They are int8, as a definition has
them, or uint8 or float8_e8m0fnu, as engines hold them.
"""

from functools import wraps

import torch

from .argument_table import ROUTED_MXFP4

BYTES = (torch.uint8, torch.float8_e8m0fnu)
PACKED = ("gemm1_weights", "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale")


def as_int8(layer):
    """Decorate an entry point that `arguments.takes` or `checked` has made with ROUTED_MXFP4: bytes
    of any name become int8 first.
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

"""mxfp4_arguments: what entry points for MXFP4 experts take, and its check.

As arguments.ROUTED, but for the weights: two E2M1 to a byte along K, and a byte of E8M0 for each 32
of K. They are int8, as a definition has them, or uint8 or float8_e8m0fnu, as engines hold them.
"""

from functools import wraps

import torch

from .arguments import ROUTED
from .problem import HIDDEN_SIZE as H
from .problem import INTERMEDIATE_SIZE as I
from .problem import NUM_LOCAL_EXPERTS as E_LOCAL

BYTES = (torch.uint8, torch.float8_e8m0fnu)
PACKED = {
    "gemm1_weights": ((E_LOCAL, 2 * I, H // 2), torch.int8),
    "gemm1_weights_scale": ((E_LOCAL, 2 * I, H // 32), torch.int8),
    "gemm2_weights": ((E_LOCAL, H, I // 2), torch.int8),
    "gemm2_weights_scale": ((E_LOCAL, H, I // 32), torch.int8),
}
ROUTED_MXFP4 = {name: PACKED.get(name, want) for name, want in ROUTED.items()}


def as_int8(layer):
    """Decorator of an entry point that `arguments.takes` or `checked` has made with ROUTED_MXFP4:
    bytes of any name become int8 first.
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

"""arguments: what the FP8 layer's entry points take: each interface's names, shapes and dtypes, and
their check.

Every tensor is contiguous, starts at a multiple of 16 bytes and lies on the device of the first.
"""

from functools import wraps
from inspect import Parameter, Signature
from types import SimpleNamespace

import torch

from .check_tensors import check_rank, check_tensors
from .problem import HIDDEN_SIZE as H
from .problem import INTERMEDIATE_SIZE as I
from .problem import NUM_EXPERTS as E
from .problem import NUM_LOCAL_EXPERTS as E_LOCAL
from .problem import RENORM, TOP_K

T = "tokens of a call"
FP8, FP32, BF16, INT32 = torch.float8_e4m3fn, torch.float32, torch.bfloat16, torch.int32

WEIGHTS = {
    "gemm1_weights": ((E_LOCAL, 2 * I, H), FP8),
    "gemm1_weights_scale": ((E_LOCAL, 2 * I // 128, H // 128), FP32),
    "gemm2_weights": ((E_LOCAL, H, I), FP8),
    "gemm2_weights_scale": ((E_LOCAL, H // 128, I // 128), FP32),
}
# An interface: name -> shape and dtype of a tensor, range of an int, float for any number. Numbers
# stand before output.
DS_ROUTING = {
    "routing_logits": ((T, E), BF16 if RENORM else FP32),
    "routing_bias": ((E,), BF16),
    "hidden_states": ((T, H), FP8),
    "hidden_states_scale": ((H // 128, T), FP32),
    **WEIGHTS,
    "local_expert_offset": range(E - E_LOCAL + 1),
    "routed_scaling_factor": float,
    "output": ((T, H), BF16),
}
RENORM_ROUTING = {
    name: DS_ROUTING[name] for name in ("routing_logits", "hidden_states", "hidden_states_scale")
}
RENORM_ROUTING |= WEIGHTS | {"output": DS_ROUTING["output"]}
ROUTED = {
    "hidden_states": ((T, H), FP8),
    "hidden_states_scale": ((T, H // 128), FP32),
    "topk_ids": ((T, TOP_K), INT32),
    "topk_weights": ((T, TOP_K), FP32),
    **WEIGHTS,
    "local_expert_offset": range(2**31 - E_LOCAL),  # ids are int32
    "output": ((T, H), BF16),
}
DS_ROUTING_BF16, RENORM_ROUTING_BF16, ROUTED_BF16 = (
    {
        name: want
        for name, want in (form | {"hidden_states": ((T, H), BF16)}).items()
        if name != "hidden_states_scale"
    }
    for form in (DS_ROUTING, RENORM_ROUTING, ROUTED)
)

_ABSENT = dict.fromkeys(DS_ROUTING | ROUTED) | {
    "local_expert_offset": 0,
    "routed_scaling_factor": 1.0,
}


def check_arguments(interface, arguments):
    """Check one call of the layer, of all that the host can see: ids and routing are on the device.

    Args:
        interface: one of those above.
        arguments: its arguments, in its order.

    Returns:
        A namespace of the arguments of all interfaces. Those that this one lacks are None, or the
            numbers that change nothing.

    Raises:
        ValueError: dtype, rank, size, device, contiguity or alignment of a tensor, or type or range
            of a number, is not the interface's; the message names the argument, what it got and
            what it wants.
    """
    first_name, first = next(iter(interface)), arguments[0]
    check_rank(first_name, first, 2)
    num_tokens, tensors = first.shape[0], []
    for (name, want), value in zip(interface.items(), arguments, strict=True):
        if isinstance(want, range):
            if type(value) is not int or value not in want:
                raise ValueError(f"{name}: got {value!r}, want an int, {want[0]} to {want[-1]}")
        elif want is float:
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise ValueError(f"{name}: got {type(value).__name__}, want a number")
        else:
            shape, dtype = want
            tensors.append(
                (name, value, tuple(num_tokens if size is T else size for size in shape), (dtype,))
            )
    check_tensors(tensors, like=(first_name, first))
    return SimpleNamespace(**_ABSENT | dict(zip(interface, arguments, strict=True)))


def takes(interface):
    """Decorator of an entry point f(arguments), a tuple, that has them checked by another: C++, or
    a check of its own.

    A call may name arguments. Where f fails, what `check_arguments` finds is raised instead: a
    binding that cannot convert an argument does not name it.

    Raises:
        TypeError: an argument is missing, unknown or one too many; the message names it.
        ValueError: as `check_arguments`. torch.OutOfMemoryError: a binding that allocates by torch
            got no memory.
    """
    count = len(interface)
    signature = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in interface])

    def decorate(function):
        @wraps(function)
        def call(*arguments, **named):
            if named or len(arguments) != count:
                arguments = signature.bind(*arguments, **named).args
            if (
                type(arguments[-3]) is bool or type(arguments[-2]) is bool
            ):  # a binding takes True for 1
                check_arguments(interface, arguments)
            try:
                return function(arguments)
            except MemoryError as error:  # tvm-ffi's; engines try again with less on torch's
                raise torch.OutOfMemoryError(str(error)) from error
            except (AttributeError, BufferError, IndexError, RuntimeError, TypeError):
                check_arguments(interface, arguments)
                if arguments[0].is_meta:
                    raise ValueError(
                        f"{next(iter(interface))}: is on meta, want a CUDA device"
                    ) from None
                raise

        call.__signature__ = signature  # what FlashInfer-Bench and help() look at
        return call

    return decorate


def checked(interface):
    """Decorator of an entry point f(given): it becomes one as by `takes` and gets what
    `check_arguments` returns.
    """

    def decorate(function):
        @takes(interface)
        @wraps(function)
        def call(arguments):
            return function(check_arguments(interface, arguments))

        return call

    return decorate

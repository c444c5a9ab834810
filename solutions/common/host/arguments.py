"""arguments: what the FP8 layer's entry points take, and its check.

An interface has the names, shapes and dtypes of the arguments of one kind of definition.
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
from .problem import NUM_SHARED_EXPERTS, RENORM, TOP_K

T = "tokens of a call"
FP8 = torch.float8_e4m3fn
FP32 = torch.float32
BF16 = torch.bfloat16
INT32 = torch.int32

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
    "local_expert_offset": range(E - (E_LOCAL - NUM_SHARED_EXPERTS) + 1),
    "routed_scaling_factor": float,
    "output": ((T, H), BF16),
}
RENORM_ROUTING = {
    "routing_logits": DS_ROUTING["routing_logits"],
    "hidden_states": DS_ROUTING["hidden_states"],
    "hidden_states_scale": DS_ROUTING["hidden_states_scale"],
    **WEIGHTS,
    "output": DS_ROUTING["output"],
}
ROUTED = {
    "hidden_states": ((T, H), FP8),
    "hidden_states_scale": ((T, H // 128), FP32),
    "topk_ids": ((T, TOP_K), INT32),
    "topk_weights": ((T, TOP_K), FP32),
    **WEIGHTS,
    "local_expert_offset": range(2**31 - E_LOCAL),  # ids are int32
    "output": ((T, H), BF16),
}


def _with_bf16_tokens(interface):
    """Return an interface like another, for tokens in bf16, which have no scales."""
    fields = dict(interface)
    fields["hidden_states"] = ((T, H), BF16)
    del fields["hidden_states_scale"]
    return fields


DS_ROUTING_BF16 = _with_bf16_tokens(DS_ROUTING)
RENORM_ROUTING_BF16 = _with_bf16_tokens(RENORM_ROUTING)
ROUTED_BF16 = _with_bf16_tokens(ROUTED)

# what an interface that lacks an argument has in its place
_ABSENT = dict.fromkeys(DS_ROUTING | ROUTED)
_ABSENT["local_expert_offset"] = 0
_ABSENT["routed_scaling_factor"] = 1.0


def check_arguments(interface, arguments):
    """Check all that the host can see of a call. Ids and routing are on the device.

    Args:
        interface: one of those above.
        arguments: its arguments, in its order.

    Returns:
        A namespace of the arguments of all interfaces. Those that this interface lacks are None, or
            the numbers that change nothing.

    Raises:
        ValueError: dtype, rank, size, device, contiguity or alignment of a tensor, or type or range
            of a number, is not the interface's; the message names the argument, what it got and
            what it wants.
    """
    first_name = next(iter(interface))
    first = arguments[0]
    check_rank(first_name, first, 2)

    num_tokens = first.shape[0]
    tensors = []
    for (name, want), value in zip(interface.items(), arguments, strict=True):
        if want is float or isinstance(want, range):
            _check_number(name, value, want)
        else:
            shape, dtype = want
            shape = tuple(num_tokens if size is T else size for size in shape)
            tensors.append((name, value, shape, (dtype,)))
    check_tensors(tensors, like=(first_name, first))

    by_name = dict(zip(interface, arguments, strict=True))
    return SimpleNamespace(**_ABSENT | by_name)


def _check_number(name, value, want):
    """Raise ValueError where a value is not an int of the range `want`, or a number for float."""
    if want is float:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ValueError(f"{name}: got {type(value).__name__}, want a number")
    elif type(value) is not int or value not in want:
        raise ValueError(f"{name}: got {value!r}, want an int, {want[0]} to {want[-1]}")


def takes(interface):
    """Return a decorator of f(arguments), which makes it an entry point of an interface.

    f gets a tuple and has it checked elsewhere: by C++, or by itself. A call may name arguments.
    Where f fails, what `check_arguments` finds is raised instead, as a binding that cannot convert
    an argument does not name it.

    Raises:
        TypeError: an argument is missing, unknown or one too many; the message names it.
        ValueError: as `check_arguments`. torch.OutOfMemoryError: a binding that allocates by torch
            got no memory.
    """
    count = len(interface)
    first_name = next(iter(interface))
    kind = Parameter.POSITIONAL_OR_KEYWORD
    signature = Signature([Parameter(name, kind) for name in interface])

    def decorate(function):
        @wraps(function)
        def call(*arguments, **named):
            if named or len(arguments) != count:
                arguments = signature.bind(*arguments, **named).args
            # numbers stand here; a binding takes True for 1
            if type(arguments[-3]) is bool or type(arguments[-2]) is bool:
                check_arguments(interface, arguments)

            try:
                return function(arguments)
            except MemoryError as error:  # tvm-ffi's; engines try again with less on torch's
                raise torch.OutOfMemoryError(str(error)) from error
            except (AttributeError, BufferError, IndexError, RuntimeError, TypeError):
                check_arguments(interface, arguments)
                if arguments[0].is_meta:
                    message = f"{first_name}: is on meta, want a CUDA device"
                    raise ValueError(message) from None
                raise

        call.__signature__ = signature  # what FlashInfer-Bench and help() look at
        return call

    return decorate


def checked(interface):
    """Return a decorator of f(given), which makes it an entry point as `takes` does.

    f gets what `check_arguments` returns.
    """

    def decorate(function):
        @takes(interface)
        @wraps(function)
        def call(arguments):
            return function(check_arguments(interface, arguments))

        return call

    return decorate

"""arguments: decorators for the entry points of the layer, which check what they are called with.

A main.py writes `@takes(DS_ROUTING)` above a `run` whose arguments C++ checks, and
`@checked(DS_ROUTING)` above one that leaves it to `check_arguments`. DS_ROUTING, ROUTED and so on
are interfaces: dicts, name of an argument -> Tensor, Integer or Real (argument.py), in the order of
the arguments. Every tensor is contiguous, starts at a multiple of 16 bytes and lies on the device
of the first.
"""

from dataclasses import replace
from functools import wraps
from inspect import Parameter, Signature
from types import SimpleNamespace

import torch

from .argument import Integer, Tensor
from .argument_table import DS_ROUTING, RENORM_ROUTING, ROUTED, ROUTED_MXFP4
from .check_tensors import check_rank, check_tensors


def _with_bf16_tokens(interface):
    """Return a copy of an interface for bf16 tokens, which have no scales."""
    fields = {}
    for name, argument in interface.items():
        if not (isinstance(argument, Tensor) and argument.optional):
            fields[name] = argument
    fields["hidden_states"] = replace(interface["hidden_states"], dtype=torch.bfloat16)
    return fields


DS_ROUTING_BF16 = _with_bf16_tokens(DS_ROUTING)
RENORM_ROUTING_BF16 = _with_bf16_tokens(RENORM_ROUTING)
ROUTED_BF16 = _with_bf16_tokens(ROUTED)

# name -> value of an argument that an interface does not have
_ABSENT = dict.fromkeys(DS_ROUTING | ROUTED | ROUTED_MXFP4)
_ABSENT["local_expert_offset"] = 0
_ABSENT["routed_scaling_factor"] = 1.0


def check_arguments(interface, arguments):
    """Check a call's arguments, but not the ids and logits, which are on the device.

    Args:
        interface: one of argument_table.py, or of this file for bf16 tokens.
        arguments: a value for each argument of the interface, in its order.

    Returns:
        A namespace with an attribute for each argument of any interface. The value of those that
            this interface does not have is None, but for local_expert_offset, 0, and
            routed_scaling_factor, 1.

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
    for (name, argument), value in zip(interface.items(), arguments, strict=True):
        if isinstance(argument, Tensor):
            shape = tuple(
                num_tokens if isinstance(size, str) else size for size in argument.shape
            )
            tensors.append((name, value, shape, (argument.dtype,)))
        else:
            _check_number(name, value, argument)
    check_tensors(tensors, like=(first_name, first))

    by_name = dict(zip(interface, arguments, strict=True))
    return SimpleNamespace(**_ABSENT | by_name)


def _check_number(name, value, argument):
    """Raise ValueError unless value is a number that an Integer or Real allows."""
    if isinstance(argument, Integer):
        if type(value) is not int or not 0 <= value <= argument.at_most:
            raise ValueError(
                f"{name}: got {value!r}, want an int, 0 to {argument.at_most}"
            )
    elif not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{name}: got {type(value).__name__}, want a number")


def takes(interface):
    """Return a decorator that makes an entry point, called with an interface's arguments, of f.

    f is called with one tuple of the arguments in order, also where the caller named some, and
    checks them, by itself or in C++. `check_arguments` is called only after f has failed: its error
    names the argument, and that of a tvm-ffi binding does not.

    The entry point raises:
        TypeError: an argument is missing, unknown or one too many; the message names it.
        ValueError: as `check_arguments`.
        torch.OutOfMemoryError: C++ that allocates by torch got no memory.
    """
    count = len(interface)
    first_name = next(iter(interface))
    numbers = [
        place
        for place, argument in enumerate(interface.values())
        if not isinstance(argument, Tensor)
    ]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    signature = Signature([Parameter(name, kind) for name in interface])

    def decorate(function):
        @wraps(function)
        def call(*arguments, **named):
            if named or len(arguments) != count:
                arguments = signature.bind(*arguments, **named).args
            for place in numbers:
                if type(arguments[place]) is bool:  # a binding takes True for 1
                    check_arguments(interface, arguments)

            try:
                return function(arguments)
            except MemoryError as error:
                # tvm-ffi's; engines catch torch's and retry with less
                raise torch.OutOfMemoryError(str(error)) from error
            # ValueError passes: the one that our C++ raises names the argument already
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
    """Return a decorator that makes an entry point of f, as `takes` does, and checks every call.

    f is called with the namespace that `check_arguments` returns.
    """

    def decorate(function):
        @takes(interface)
        @wraps(function)
        def call(arguments):
            return function(check_arguments(interface, arguments))

        return call

    return decorate

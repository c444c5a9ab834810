"""overlap: captured launches that begin before their predecessor ends (programmatic dependent
launch).

A kernel so launched waits by itself for what it reads. SGLang launches its kernel this way. Where
no graph replays a call, `replayed` does, and has plain launches: host time counts for more there.
"""

from functools import wraps

import torch
import triton

from ..common.host import launch
from ..common.host.replay import replayed


def overlap(*kernels):
    """Let later captured launches of these kernels overlap their predecessors.

    They are named to `launch_quickly` first. Of launches of a kind that there was none of outside a
    capture, the first is a plain one.
    """
    for kernel in kernels:
        if launch.SUPPORTED and isinstance(kernel, triton.JITFunction):
            kernel.run = _overlapping_run(kernel, kernel.run)


def _overlapping_run(kernel, plain_run):
    """`plain_run`, but for captured launches; it returns the compiled kernel at the first launch of
    a kind.
    """
    ordinary = [p for p in kernel.params if not p.is_constexpr]
    constexprs = [p.name for p in kernel.params if p.is_constexpr]
    integers = launch.specialised(ordinary)
    launchers = {}

    def run(*args, grid, warmup, **keywords):
        device = torch._C._cuda_getDevice()
        key = (device, *keywords.values(), *[launch.specialisation(args[at]) for at in integers])
        if (
            key in launchers
            and not warmup
            and not launch.hooked()
            and torch.cuda.is_current_stream_capturing()
        ):
            start, (function, cooperative, _, *rest) = launchers[key]
            values = [keywords[name] for name in constexprs]
            stream = torch._C._cuda_getCurrentRawStream(device)
            start(*(*grid, 1, 1)[:3], stream, function, cooperative, True, *rest, *args, *values)
            return None
        compiled = plain_run(*args, grid=grid, warmup=warmup, **keywords)
        if compiled is not None and (found := launch.launcher_of(compiled)):
            launchers[key] = found
        return compiled

    return run


def replayed_or_captured(run):
    """`run` with its launches replayed; but in a capture `run` itself, whose launches overlap."""
    of_no_graph = replayed(run)
    if of_no_graph is run:  # not supported
        return run

    @wraps(run)
    def call(*arguments, **named):
        captured = torch.cuda.is_current_stream_capturing()
        return (run if captured else of_no_graph)(*arguments, **named)

    return call

"""overlap: captured launches that begin before their predecessor ends.

That is programmatic dependent launch. A kernel so launched waits by itself for what it reads.
SGLang launches its kernel this way. Where no graph replays a call, `replayed` does, and has plain
launches: host time counts for more there.
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
    """Return `plain_run`, but for captured launches.

    It returns the compiled kernel at the first launch of a kind.
    """
    ordinary, constexprs = launch.parameters_of(kernel)
    integers = launch.specialised(ordinary)
    launchers = {}

    def run(*args, grid, warmup, **keywords):
        device = torch._C._cuda_getDevice()
        key = (device, *keywords.values(), *[launch.specialisation(args[at]) for at in integers])
        seen = key in launchers and not warmup and not launch.hooked()
        if seen and torch.cuda.is_current_stream_capturing():
            start, (function, cooperative, _, *rest) = launchers[key]
            values = [keywords[name] for name in constexprs]
            stream = torch._C._cuda_getCurrentRawStream(device)
            start(*(*grid, 1, 1)[:3], stream, function, cooperative, True, *rest, *args, *values)
            return None

        compiled = plain_run(*args, grid=grid, warmup=warmup, **keywords)
        if compiled is not None:
            launcher = launch.launcher_of(compiled)
            if launcher:
                launchers[key] = launcher
        return compiled

    return run


def replayed_or_captured(run):
    """Return `run` with its launches replayed; in a capture it is `run`, whose launches overlap."""
    of_no_graph = replayed(run)
    if of_no_graph is run:  # not supported
        return run

    @wraps(run)
    def call(*arguments, **named):
        if torch.cuda.is_current_stream_capturing():
            return run(*arguments, **named)
        return of_no_graph(*arguments, **named)

    return call

"""overlap: in CUDA graphs, launch kernels before the preceding kernel has ended.

main.py and grouped_gemm.py call `overlap` on import, and main.py puts `@replayed_or_captured` above
its entry points. This is programmatic dependent launch, with which SGLang launches its kernel; each
kernel waits by itself for what it reads. Calls that are not captured into a graph are replayed by
common/host/replay.py with plain launches, as there host time matters more than the overlap.
"""

from functools import wraps

import torch
import triton

from ..common.host import launch
from ..common.host.replay import replayed


def overlap(*kernels):
    """Let launches of these kernels in a capture overlap the preceding kernel.

    The kernels have been passed to `launch_quickly` before. A launch whose arguments are of a new
    kind (launch.py's key) is a plain one, in a capture, too.
    """
    for kernel in kernels:
        if launch.SUPPORTED and isinstance(kernel, triton.JITFunction):
            kernel.run = _overlapping_run(kernel, kernel.run)


def _overlapping_run(kernel, plain_run):
    """Return a `run` method that launches with overlap in a capture, and calls plain_run otherwise.

    plain_run: the kernel's `run` from `launch_quickly`, which returns the compiled kernel at the
    first launch of a kind and None later.
    """
    ordinary, constexprs = launch.parameters_of(kernel)
    integers = launch.specialised(ordinary)
    launchers = {}

    def run(*args, grid, warmup, **keywords):
        device = torch._C._cuda_getDevice()
        key = (
            device,
            *keywords.values(),
            *[launch.specialisation(args[at]) for at in integers],
        )
        seen = key in launchers and not warmup and not launch.hooked()
        if seen and torch.cuda.is_current_stream_capturing():
            start, (function, cooperative, _, *rest) = launchers[key]
            values = [keywords[name] for name in constexprs]
            stream = torch._C._cuda_getCurrentRawStream(device)
            start(
                *(*grid, 1, 1)[:3],
                stream,
                function,
                cooperative,
                True,
                *rest,
                *args,
                *values,
            )
            return None

        compiled = plain_run(*args, grid=grid, warmup=warmup, **keywords)
        if compiled is not None:
            launcher = launch.launcher_of(compiled)
            if launcher:
                launchers[key] = launcher
        return compiled

    return run


def replayed_or_captured(run):
    """Return an entry point that replays `run`, and in a capture calls `run` itself."""
    of_no_graph = replayed(run)
    if of_no_graph is run:  # not supported
        return run

    @wraps(run)
    def call(*arguments, **named):
        if torch.cuda.is_current_stream_capturing():
            return run(*arguments, **named)
        return of_no_graph(*arguments, **named)

    return call

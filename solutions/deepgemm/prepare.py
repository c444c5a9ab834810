"""prepare: a launch of which all but the tensors is decided ahead.

A layer's grids, numbers and constexprs follow from the kind of a call (plan.py). So only the first launch with given
constexprs goes through Triton, which derives a key from every argument, and later ones hand its compiled launcher the
tensors' addresses. `launch_quickly` would still make a key from the constexprs of each launch.
"""

import torch

from .common.host import launch

_launchers = {}  # (kernel, device, constexprs and options) -> launch function, its arguments before and after


def prepare(kernel, device, grid, numbers, **settings):
    """A function start(stream, *tensors) that launches kernel[grid](*tensors, *numbers, **settings).

    Args:
        kernel: takes pointers, then numbers that it does not specialise on, then constexprs.
        device: the current device at each start.
        grid: three sizes.
        settings: constexprs and options of the launch.

    The tensors of a start lie at multiples of 16 bytes, and each has the same dtype in all of them. `stream` is the
    handle of the current stream.
    """
    key = (kernel, device, *settings.values())
    launcher = None

    def start(stream, *tensors):
        nonlocal launcher
        if launcher is None:
            launcher = _launchers.get(key)
        if launcher is None or launch.hooked():  # or: a profiler that wants to hear of each launch
            compiled = kernel[grid](*tensors, *numbers, **settings)
            if launch.SUPPORTED and (found := launch.launcher_of(compiled)):
                _launchers[key] = *found, [settings[p.name] for p in kernel.params if p.is_constexpr]
            return
        function, before, constexprs = launcher
        function(*grid, stream, *before, *map(torch.Tensor.data_ptr, tensors), *numbers, *constexprs)

    return start

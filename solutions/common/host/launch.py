"""launch: start Triton kernels with less host work than Triton's own launch, which costs as much as
a small kernel.

`kernel[grid](...)` binds its arguments, derives a cache key from each of them and builds metadata
for hooks, every time. `launch_quickly` puts a shorter `run` before the kernel's own: a call whose
key was seen goes straight to the launcher that Triton compiled, all others take the ordinary way.
Callers write `kernel[grid](...)` as before.
"""

import threading

import torch
import triton
from triton import knobs

# What is used below is not public: other versions, and machines without a GPU, launch the ordinary
# way.
SUPPORTED = triton.__version__.startswith("3.6.") and torch.cuda.is_available()


# While replay.py watches a call of this thread: a list of (compiled kernel, grid, arguments by
# name).
class _Watching(threading.local):
    launches = None


watching = _Watching()


def launch_quickly(*kernels):
    """Shorten the host side of every later launch of these kernels. Does nothing where it is not
    supported.

    The key of a launch is the device, the values given by keyword and, for each integer argument
    that Triton specialises on, which of Triton's cases (divisible by 16, one, other) it is. The
    rest is the callers' duty: - constexprs and options (num_warps, ...) come by keyword, always in
    the same order, all others by position; - an argument has the same dtype in every call, a tensor
    descriptor also the same block for equal constexprs; - pointers are multiples of 16 bytes,
    unless named in do_not_specialize_on_alignment. Inputs are by check_arguments, whole allocations
    by torch, and slices of scratch by their sizes.

    Raises:
        ValueError: a kernel has a constexpr before an ordinary parameter, or a parameter is named
            unlike the rest.
    """
    for kernel in kernels:
        if SUPPORTED and isinstance(kernel, triton.JITFunction):
            kernel.run = _quick_run(
                kernel
            )  # hides the method of the class, which serves as the ordinary way


def _quick_run(kernel):
    """`kernel.run` with a memory of the launches it has seen."""
    constexprs = [p.name for p in kernel.params if p.is_constexpr]
    ordinary = [p for p in kernel.params if not p.is_constexpr]
    names = [p.name for p in ordinary]
    if [p.name for p in kernel.params[len(ordinary) :]] != constexprs:
        raise ValueError(f"{kernel.__name__}: a constexpr stands before an ordinary parameter")
    integers = specialised(ordinary)
    seen = {}

    def run(*args, grid, warmup, **keywords):
        device = torch._C._cuda_getDevice()
        key = (device, *keywords.values(), *[specialisation(args[at]) for at in integers])
        found = seen.get(key)
        if found is None or warmup or kernel.pre_run_hooks or hooked():
            compiled = triton.JITFunction.run(kernel, *args, grid=grid, warmup=warmup, **keywords)
            if watching.launches is not None and not warmup:
                watching.launches.append(
                    (compiled, grid, dict(zip(names, args, strict=True)) | keywords)
                )
            if found is None and not warmup and (launcher := launcher_of(compiled)):
                seen[key] = (*launcher, [keywords[name] for name in constexprs])
            return compiled
        launch, before, values = found
        grid_y = grid[1] if len(grid) > 1 else 1
        launch(
            grid[0], grid_y, 1, torch._C._cuda_getCurrentRawStream(device), *before, *args, *values
        )

    return run


def specialised(ordinary):
    """Places of the integers that Triton specialises on, among the parameters of a kernel that are
    not constexprs.
    """
    return [
        at
        for at, p in enumerate(ordinary)
        if not p.name.endswith(("_ptr", "_desc")) and not p.do_not_specialize
    ]


def specialisation(integer):
    """Which of the code variants that Triton makes for an integer argument serves this value."""
    return 0 if integer % 16 == 0 else 1 if integer == 1 else 2


def hooked():
    """True when a profiler or debugger wants to hear of launches."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return getattr(enter, "calls", enter) or getattr(leave, "calls", leave)


def launcher_of(compiled):
    """(launch function, arguments it takes between the stream and the kernel's own), None where
    that is unknown.

    This is CudaLauncher.__call__ of a kernel without global scratch; tensor descriptors become TMA
    descriptors inside the launch function.
    """
    launcher = getattr(compiled, "_run", None)  # None: compiled, but not launched
    if (
        type(launcher).__name__ != "CudaLauncher"
        or launcher.global_scratch_size
        or launcher.profile_scratch_size
    ):
        return None
    no_scratch, no_hooks = (None, None), (None, None, None)
    before = (
        compiled.function,
        launcher.launch_cooperative_grid,
        launcher.launch_pdl,
        *no_scratch,
        compiled.packed_metadata,
        *no_hooks,
    )
    return launcher.launch, before

"""launch: start Triton kernels with less host work than Triton's own launch, which takes about as
long as a small kernel runs.

`kernel[grid](...)` binds its arguments, derives a cache key from each of them and builds metadata
for hooks, every time. A solution passes its kernels to `launch_quickly` on import, which puts a
shorter `run` before the kernel's own: a launch whose key was seen goes straight to the launcher
that Triton compiled, all others take Triton's way. Callers write `kernel[grid](...)` as before.
"""

import threading

import torch
import triton
from triton import knobs

# What is used below is not public: other versions, and machines without a GPU, launch the ordinary
# way.
SUPPORTED = triton.__version__.startswith("3.6.") and torch.cuda.is_available()


class _Watching(threading.local):
    """The launches of this thread that replay.py collects.

    launches: a list of (compiled kernel, grid, arguments by name), None while it collects none.
    """

    launches = None


watching = _Watching()


def launch_quickly(*kernels):
    """Shorten the host side of every later launch of these kernels. Does nothing where it is not
    supported.

    The key of a launch is the device, the values given by keyword and, for each integer argument
    that Triton specialises on, which of Triton's cases (divisible by 16, one, other) it is. The
    rest is the callers' duty:

    - Names of a kernel's pointers end in _ptr, those of its tensor descriptors in _desc; all other
      ordinary parameters are integers, or in do_not_specialize.
    - Constexprs and options (num_warps, ...) come by keyword, always in the same order, all others
      by position.
    - An argument has the same dtype in every call, a tensor descriptor also the same block for
      equal constexprs.
    - Pointers are multiples of 16 bytes, unless named in do_not_specialize_on_alignment.
      check_arguments sees to it for inputs, torch for whole allocations, their sizes for slices of
      scratch.

    Raises:
        ValueError: a kernel has a constexpr before an ordinary parameter.
    """
    for kernel in kernels:
        if SUPPORTED and isinstance(kernel, triton.JITFunction):
            # hides the method of the class, which _quick_run calls for a launch it has not seen
            kernel.run = _quick_run(kernel)


def _quick_run(kernel):
    """Return `kernel.run` with a memory of the launches it has seen."""
    ordinary, constexprs = parameters_of(kernel)
    integers = specialised(ordinary)
    seen = {}

    def run(*args, grid, warmup, **keywords):
        # each microsecond here is one of every launch: no function is called that need not be
        device = torch._C._cuda_getDevice()
        key = (
            device,
            *keywords.values(),
            *[specialisation(args[at]) for at in integers],
        )
        launcher = seen.get(key)
        if launcher is None or warmup or kernel.pre_run_hooks or hooked():
            compiled = triton.JITFunction.run(
                kernel, *args, grid=grid, warmup=warmup, **keywords
            )
            if not warmup:
                watch(compiled, grid, ordinary, args, keywords)
                if launcher is None:
                    remember(seen, key, compiled, constexprs, keywords)
            return compiled

        launch, before, values = launcher
        grid_y = grid[1] if len(grid) > 1 else 1
        stream = torch._C._cuda_getCurrentRawStream(device)
        launch(grid[0], grid_y, 1, stream, *before, *args, *values)

    return run


def parameters_of(kernel):
    """Return a kernel's ordinary parameters, and the names of the constexprs behind them.

    Raises ValueError where a constexpr stands before an ordinary parameter.
    """
    ordinary = []
    constexprs = []
    for parameter in kernel.params:
        if parameter.is_constexpr:
            constexprs.append(parameter.name)
        elif constexprs:
            raise ValueError(
                f"{kernel.__name__}: a constexpr stands before an ordinary parameter"
            )
        else:
            ordinary.append(parameter)
    return ordinary, constexprs


def remember(launchers, key, compiled, constexprs, keywords):
    """Set launchers[key] to a compiled kernel's launcher and its constexprs' values, if it has one.

    launchers: key of a launch -> (launch function, arguments before the kernel's, constexprs).
    """
    launcher = launcher_of(compiled)
    if launcher:
        values = [keywords[name] for name in constexprs]
        launchers[key] = (*launcher, values)


def watch(compiled, grid, ordinary, args, keywords):
    """Add a launch to those that replay.py collects in this thread, if it does.

    ordinary: the parameters that args are values of.
    """
    if watching.launches is not None:
        names = [parameter.name for parameter in ordinary]
        arguments = dict(zip(names, args, strict=True)) | keywords
        watching.launches.append((compiled, grid, arguments))


def specialised(ordinary):
    """Return the indices of the integer parameters whose values Triton compiles variants for.

    ordinary: the parameters of a kernel that are no constexprs.
    """
    places = []
    for at, parameter in enumerate(ordinary):
        is_integer = not parameter.name.endswith(("_ptr", "_desc"))
        if is_integer and not parameter.do_not_specialize:
            places.append(at)
    return places


def specialisation(integer):
    """Return 0 for a multiple of 16, 1 for 1, else 2. Triton compiles a variant for each case."""
    if integer % 16 == 0:
        return 0
    return 1 if integer == 1 else 2


def hooked():
    """Return whether a profiler or debugger wants to hear of launches."""
    enter = knobs.runtime.launch_enter_hook
    leave = knobs.runtime.launch_exit_hook
    return getattr(enter, "calls", enter) or getattr(leave, "calls", leave)


def launcher_of(compiled):
    """Return a launch function, and its arguments that stand between the stream and the kernel's.

    None where the kernel needs another way. The arguments are those that Triton 3.6's
    CudaLauncher.__call__ passes for a kernel without global scratch; tensor descriptors become TMA
    descriptors inside the launch function.
    """
    launcher = getattr(compiled, "_run", None)  # None: compiled, but not launched
    if type(launcher).__name__ != "CudaLauncher":
        return None
    if launcher.global_scratch_size or launcher.profile_scratch_size:
        return None

    before = (
        compiled.function,
        launcher.launch_cooperative_grid,
        launcher.launch_pdl,
        None,  # global scratch
        None,  # a profiler's scratch
        compiled.packed_metadata,
        None,  # a hook's metadata
        None,  # the hook ahead of a launch
        None,  # the hook after it
    )
    return launcher.launch, before

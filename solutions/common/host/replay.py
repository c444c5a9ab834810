"""replay: after the first call of its kind, a layer's Triton kernels start from one call into C++.

A solution puts `@replayed` above its entry point.

Launched one by one from Python, a kernel of a few microseconds is over before the next is launched.
What host code does - checks, choice of tiles, scratch, tensor descriptors - depends on the shapes,
dtypes and alignment of the tensors and on the numbers among the arguments, not on what the tensors
hold. Calls that agree in all of these are of one kind. The first call of a kind runs in Python and
is watched: which kernels it launches, and into which argument or scratch each pointer points.
replay.cpp launches the same kernels for later calls of the kind, with the pointers of their own
tensors; no address is kept.

    call: is its kind known?
      yes: replay.cpp allocates the scratch and launches all kernels
      no:  Python runs it and is watched. Is every pointer and launch understood?
             yes: keep the launches for later calls of this kind
             no:  calls of this kind always run in Python
"""

import struct
import sys
from functools import wraps
from pathlib import Path

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST
from triton.tools.tensor_descriptor import TensorDescriptor

from . import launch

# What replay.cpp's `replay` answers, as in recorded_call.h.
UNKNOWN = 0  # the call's kind is new
DONE = 1  # all kernels were launched
ORDINARY = 2  # calls of this kind run in Python
# Kinds of a kernel's parameter, as in recorded_call.h.
VALUE = 0
ADDRESS = 1
MAP = 2  # a TMA descriptor
# What an address is relative to, where it lies in no argument; as in recorded_call.h.
SCRATCH = -1
NULL = -2
# Bytes. replay.cpp does not reuse scratch within a call as torch does. Where a call needs more than
# this, its kernels take so long that host time hardly counts.
MOST_SCRATCH = 256 << 20
MOST_PARAMETERS = 64  # as in replay.cpp
ALLOCATIONS = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default)


def replayed(run):
    """Return an entry point that does what `run` does, by replay.cpp where it can.

    Where launch.SUPPORTED is false, or replay.cpp does not compile (a line on standard error says
    so), `run` itself is returned.

    run(*arguments) launches only kernels that `launch_quickly` got, all on the current stream, and
    returns None.
    """
    if not launch.SUPPORTED:
        return run
    try:
        library = build()
    except Exception as error:
        # any: a solution without replay.cpp is slower, not broken
        message = (
            f"replay: launching from Python, as the C++ part does not build: {error}"
        )
        print(message, file=sys.stderr)
        return run
    return replayed_by(library, run)


def build():
    """Return the module compiled from replay.cpp, which has the function `replay_and_keep`.

    Raises RuntimeError as `build_library` does.
    """
    from .build_library import (
        build_library,
        load_library,
    )  # needs tvm_ffi, which may be missing

    texts = {}
    for name in ("replay.cpp", "recorded_call.h"):
        texts[name] = Path(__file__).with_name(name).read_text()
    headers = Path(triton.__file__).parent / "backends/nvidia/include"
    library = build_library(
        "replay", texts, include_folders=[headers], headers_version=triton.__version__
    )
    return load_library(library)


def replayed_by(library, run):
    """Return an entry point that does what `run` does. library: as `build` returns."""
    replay, keep = library.replay_and_keep()
    kernels = []  # replay.cpp holds handles of kernels only, so they must stay loaded

    @wraps(run)
    def call(*arguments, **named):
        if named or launch.hooked():  # hooked: a profiler wants to hear of each launch
            return run(*arguments, **named)

        try:
            answer = replay(*arguments)
        except Exception as error:
            if str(error).startswith("replay: "):
                raise
            # C++ cannot take one of the tensors: the checks in `run` name it, or allow it
            answer = ORDINARY
        if answer == ORDINARY:
            return run(*arguments)
        if answer == UNKNOWN:
            launches, scratch = watched(run, arguments)
            numbers = plan(launches, scratch, arguments)
            kernels.extend(compiled for compiled, *_ in launches)
            # No bytes and no launches mean that calls of this kind run in Python.
            keep(numbers or [0, 0], *arguments)

    return call


class _Watch(TorchDispatchMode):
    """Collects in `scratch` what torch allocates during a call.

    The allocations, and the arguments in `launches`, are kept alive, so that no two share an
    address.

    `other` becomes true when torch does anything but allocate or view, or allocates more than
    MOST_SCRATCH. Such a call is not replayed. From then on nothing is kept alive, because a large
    scratch must not stay longer than the call needs it.
    """

    def __init__(self, launches):
        super().__init__()
        self.launches = launches
        self.scratch = []
        self.bytes = 0
        self.other = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function in ALLOCATIONS:
            self.bytes += result.nbytes
            self.scratch.append(result)
        elif not function.is_view:
            self.other = True

        if self.other or self.bytes > MOST_SCRATCH:
            self.other = True
            self.scratch.clear()
            self.launches.clear()
            launch.watching.launches = None
        return result


def watched(run, arguments):
    """Call run(*arguments) and return its launches and its scratch, a list of tensors.

    A launch is (compiled kernel, grid, arguments by name). For a call that cannot be replayed it is
    [] and None.
    """
    started = []  # all launches, also of kernels that launch_quickly did not get
    launches = []
    knobs.runtime.launch_enter_hook.add(started.append)
    launch.watching.launches = launches
    try:
        with _Watch(launches) as watch:
            run(*arguments)
        complete = len(started) == len(launches) and not watch.other
        return (launches, watch.scratch) if complete else ([], None)
    finally:
        launch.watching.launches = None
        knobs.runtime.launch_enter_hook.remove(started.append)


class _Places:
    """Finds the argument or scratch that an address lies in.

    size: bytes of all scratch, laid out one after another, each rounded up to 256.
    """

    def __init__(self, arguments, scratch):
        self.owners = []  # (tensor, number of the argument or SCRATCH, offset in it)
        self.size = 0
        for at, argument in enumerate(arguments):
            if isinstance(argument, torch.Tensor):
                self.owners.append((argument, at, 0))
        for chunk in scratch:
            self.owners.append((chunk, SCRATCH, self.size))
            self.size += -(-chunk.nbytes // 256) * 256

    def place(self, pointer):
        """Return [base, offset] of a pointer: a tensor, an address or None.

        base: the index of an argument, SCRATCH, or NULL. offset: bytes. Raises LookupError for an
        address in none of them.
        """
        address = pointer
        if pointer is None:
            address = 0
        elif not isinstance(pointer, int):
            address = pointer.data_ptr()
        if address == 0:
            return [NULL, 0]

        for owner, base, offset in self.owners:
            start = owner.data_ptr()
            if start <= address < start + owner.nbytes:
                return [base, address - start + offset]
        raise LookupError("neither an argument nor scratch")


def plan(launches, scratch, arguments):
    """Return the list of ints from which replay.cpp launches calls like this one, or None.

    launches, scratch: `watched`'s. None is for a call that replay.cpp cannot launch.
    """
    if scratch is None:
        return None

    places = _Places(arguments, scratch)
    numbers = [places.size, len(launches)]
    for compiled, grid, values in launches:
        try:
            parameters = list(_parameters(compiled, values, places.place))
        except LookupError:
            return None
        if len(parameters) > MOST_PARAMETERS or not _is_plain(compiled.metadata):
            return None

        grid = (*grid, 1, 1)[:3]
        threads = 32 * compiled.metadata.num_warps
        numbers += [
            compiled.function,
            *grid,
            threads,
            compiled.metadata.shared,
            len(parameters),
        ]
        for parameter in parameters:
            numbers += parameter
    return numbers


def _is_plain(metadata):
    """Return whether a kernel has no clusters, no launch attributes and no scratch of Triton's."""
    if (
        metadata.num_ctas != 1
        or metadata.launch_cooperative_grid
        or metadata.launch_pdl
    ):
        return False
    return not (metadata.global_scratch_size or metadata.profile_scratch_size)


def _parameters(compiled, values, place):
    """Yield what a launch hands to the device, in order; see read_parameter in replay.cpp."""
    descriptors = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    for name, kind in compiled.src.signature.items():
        if kind == "constexpr":
            continue

        value = values[name]
        if isinstance(value, TensorDescriptor):
            yield _map(value, next(descriptors, None), place)
            for number in (*value.shape, *value.strides):
                yield [VALUE, number]
        elif kind.startswith("*"):
            yield [ADDRESS, *place(value)]
        elif kind == "fp32":
            (bits,) = struct.unpack("<I", struct.pack("<f", value))
            yield [VALUE, bits]
        else:
            yield [VALUE, int(value)]


def _map(descriptor, meta, place):
    """Return the list of ints from which replay.cpp makes a TMA descriptor.

    meta: the compiled kernel's entry for this descriptor. Raises LookupError where there is none,
    as on GPUs without TMA, or the format is not supported.
    """
    if meta is None or meta["fp4_padded"]:
        raise LookupError("not a descriptor of the copy engine")
    return [
        MAP,
        *place(descriptor.base),
        TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]],
        meta["elem_size"],
        meta["swizzle"],
        int(descriptor.padding == "nan"),
        len(descriptor.shape),
        *meta["block_size"],
        *descriptor.shape,
        *descriptor.strides,
    ]

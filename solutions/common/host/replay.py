"""replay: after the first call of its kind, a layer's Triton kernels start from one call into C++.

Launched one by one from Python, a kernel of a few microseconds is over before the next is launched.
What host code does - checks, choice of tiles, scratch, tensor descriptors - depends on the shapes,
dtypes and alignment of the tensors and on the numbers among the arguments, not on what the tensors
hold. So the first call of a kind is watched: each launch, and for each pointer whose it is. Later
calls of the kind are launched by replay.cpp with their own tensors. Nothing is remembered of an
address.

    call -- of a known kind? -- yes -- replay.cpp: allocate the scratch, launch all
                +- no -- the ordinary way, watched -- all accounted for? -- yes -- keep
                                                          +- no -- remember to take the ordinary way
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

# What replay_and_keep's first function answers, as in recorded_call.h.
UNKNOWN = 0
DONE = 1
ORDINARY = 2
# Kinds of a parameter, and bases of an address that is in no argument; as in recorded_call.h.
VALUE = 0
ADDRESS = 1
MAP = 2
SCRATCH = -1
NULL = -2
# bytes: replayed scratch is not used twice, and above it the host's time hardly counts
MOST_SCRATCH = 256 << 20
MOST_PARAMETERS = 64  # as in replay.cpp
ALLOCATIONS = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default)


def replayed(run):
    """Return `run` with its launches replayed.

    That is `run` itself where replaying is not supported, which is said once.

    run(*arguments) launches kernels named to `launch_quickly` on the current stream, calls nothing
    else on the device, and returns None.
    """
    if not launch.SUPPORTED:
        return run
    try:
        library = build()
    except Exception as error:  # whatever a compiler, or its absence, comes up with
        message = f"replay: launching from Python, as the C++ part does not build: {error}"
        print(message, file=sys.stderr)
        return run
    return replayed_by(library, run)


def build():
    """Return the compiled replay.cpp, with `replay_and_keep`.

    Raises RuntimeError as `build_library` does.
    """
    from .build_library import build_library, load_library  # needs tvm_ffi, which may be missing

    texts = {}
    for name in ("replay.cpp", "recorded_call.h"):
        texts[name] = Path(__file__).with_name(name).read_text()
    headers = Path(triton.__file__).parent / "backends/nvidia/include"
    library = build_library(
        "replay", texts, include_folders=[headers], headers_version=triton.__version__
    )
    return load_library(library)


def replayed_by(library, run):
    """Return `run` with its launches replayed by a library."""
    replay, keep = library.replay_and_keep()
    kernels = []  # the plans hold their handles only

    @wraps(run)
    def call(*arguments, **named):
        if named or launch.hooked():  # or: a profiler that wants to hear of each launch
            return run(*arguments, **named)

        try:
            answer = replay(*arguments)
        except Exception as error:
            if str(error).startswith("replay: "):
                raise
            # a tensor that C++ cannot be given: checks refuse it by name, or it is no matter
            answer = ORDINARY
        if answer == ORDINARY:
            return run(*arguments)
        if answer == UNKNOWN:
            launches, scratch = watched(run, arguments)
            numbers = plan(launches, scratch, arguments)
            kernels.extend(compiled for compiled, *_ in launches)
            keep(numbers or [0, 0], *arguments)

    return call


class _Watch(TorchDispatchMode):
    """Collects the allocations of a call.

    `other` tells that torch did something else, or allocated more than MOST_SCRATCH. What is
    collected, and what the launches were given, stays alive so that no two share an address. From
    `other` on nothing is, as much scratch must not stay longer than the call needs it.
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
    """Run once. Return the launches and the scratch, which is None where it cannot be replayed.

    A launch is (compiled kernel, grid, arguments by name).
    """
    started = []  # also of kernels that launch_quickly does not know
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
    """Where the tensors of a call are: what each address belongs to.

    size: bytes of all scratch, each part rounded up to 256.
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
        """Return [base, offset] of a tensor, a plain address or None.

        Raises LookupError for an address that belongs to nothing.
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
    """Return the numbers from which replay.cpp launches a call like this one.

    None where it cannot.
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
        numbers += [compiled.function, *grid, threads, compiled.metadata.shared, len(parameters)]
        for parameter in parameters:
            numbers += parameter
    return numbers


def _is_plain(metadata):
    """Return whether a kernel is launched without clusters, attributes and memory of Triton's."""
    if metadata.num_ctas != 1 or metadata.launch_cooperative_grid or metadata.launch_pdl:
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
    """Return what a TMA descriptor is made from. meta: what Triton's compiler says of it.

    Raises LookupError where it is no descriptor of the copy engine.
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

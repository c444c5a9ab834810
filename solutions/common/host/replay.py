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

UNKNOWN, DONE, ORDINARY = range(3)  # as in recorded_call.h
VALUE, ADDRESS, MAP = range(3)
SCRATCH, NULL = -1, -2
MOST_SCRATCH = (
    256 << 20
)  # bytes: replayed scratch is not used twice, and above the host's time hardly counts
MOST_PARAMETERS = 64  # as in replay.cpp
ALLOCATIONS = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default)


def replayed(run):
    """`run` with its launches replayed; `run` itself where that is not supported, which is said
    once.

    run(*arguments) launches kernels named to `launch_quickly` on the current stream, calls nothing
    else on the device, and returns None.
    """
    if not launch.SUPPORTED:
        return run
    try:
        library = build()
    except Exception as error:  # whatever a compiler, or its absence, comes up with
        print(
            f"replay: launching from Python, as the C++ part does not build: {error}",
            file=sys.stderr,
        )
        return run
    return replayed_by(library, run)


def build():
    """The compiled replay.cpp, with `replay_and_keep`. Raises RuntimeError as `build_library`
    does.
    """
    from .build_library import build_library, load_library  # needs tvm_ffi, which may be missing

    headers = Path(triton.__file__).parent / "backends/nvidia/include"
    texts = {
        name: Path(__file__).with_name(name).read_text()
        for name in ("replay.cpp", "recorded_call.h")
    }
    return load_library(
        build_library(
            "replay", texts, include_folders=[headers], headers_version=triton.__version__
        )
    )


def replayed_by(library, run):
    """`run` with its launches replayed by a library."""
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
    """Collects the allocations of a call; `other` tells that torch did something else, or too much
    of it.

    What is collected, and what the launches were given, stays alive so that no two share an
    address: from `other` on nothing is, as much scratch must not stay longer than the call needs
    it.
    """

    def __init__(self, launches):
        super().__init__()
        self.launches, self.scratch, self.bytes, self.other = launches, [], 0, False

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
    """Run once: the launches as (compiled kernel, grid, arguments by name), the scratch, None where
    not replayable.
    """
    started = []
    knobs.runtime.launch_enter_hook.add(
        started.append
    )  # also of kernels that launch_quickly does not know
    launch.watching.launches = launches = []
    try:
        with _Watch(launches) as watch:
            run(*arguments)
        complete = len(started) == len(launches) and not watch.other
        return (launches, watch.scratch) if complete else ([], None)
    finally:
        launch.watching.launches = None
        knobs.runtime.launch_enter_hook.remove(started.append)


def plan(launches, scratch, arguments):
    """The numbers from which replay.cpp launches a call like this one; None where it cannot."""
    if scratch is None:
        return None
    owners, size = [], 0
    for at, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            owners.append((argument, at, 0))
    for chunk in scratch:
        owners.append((chunk, SCRATCH, size))
        size += -(-chunk.nbytes // 256) * 256

    def place(pointer):
        """[base, offset] of a tensor's or a plain address."""
        address = (
            pointer if isinstance(pointer, int) else 0 if pointer is None else pointer.data_ptr()
        )
        if address == 0:
            return [NULL, 0]
        for owner, base, offset in owners:
            if owner.data_ptr() <= address < owner.data_ptr() + owner.nbytes:
                return [base, address - owner.data_ptr() + offset]
        raise LookupError("neither an argument nor scratch")

    numbers = [size, len(launches)]
    for compiled, grid, values in launches:
        try:
            parameters = list(_parameters(compiled, values, place))
        except LookupError:
            return None
        metadata = compiled.metadata
        plain = metadata.num_ctas == 1 and not (
            metadata.launch_cooperative_grid or metadata.launch_pdl
        )
        scratch_free = not (metadata.global_scratch_size or metadata.profile_scratch_size)
        if not (plain and scratch_free and len(parameters) <= MOST_PARAMETERS):
            return None
        grid = (*grid, 1, 1)[:3]
        numbers += [
            compiled.function,
            *grid,
            32 * metadata.num_warps,
            metadata.shared,
            len(parameters),
        ]
        for parameter in parameters:
            numbers += parameter
    return numbers


def _parameters(compiled, values, place):
    """What a launch hands to the device, in order; see read_parameter in replay.cpp."""
    descriptors = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    for name, kind in compiled.src.signature.items():
        if kind == "constexpr":
            continue
        value = values[name]
        if isinstance(value, TensorDescriptor):
            meta = next(descriptors, None)
            if meta is None or meta["fp4_padded"]:
                raise LookupError("not a descriptor of the copy engine")
            rank = len(value.shape)
            form = [TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]], meta["elem_size"], meta["swizzle"]]
            form += [int(value.padding == "nan"), rank]
            yield [
                MAP,
                *place(value.base),
                *form,
                *meta["block_size"],
                *value.shape,
                *value.strides,
            ]
            yield from ([VALUE, number] for number in (*value.shape, *value.strides))
        elif kind.startswith("*"):
            yield [ADDRESS, *place(value)]
        elif kind == "fp32":
            yield [VALUE, struct.unpack("<I", struct.pack("<f", value))[0]]
        else:
            yield [VALUE, int(value)]

"""record: after the first call of its kind, a layer's kernels start from one call into C++.

launches.cuh is the C++. DeepGEMM's host code - checks, choice of a tile, the source of its kernel
as a key, four tensor maps - takes longer than a GEMM of few tokens, and so do launches from Python.
All of it depends on shapes, dtypes and alignment of the tensors and on the numbers among the
arguments, never on what the tensors hold or where they lie. So the first call of a kind is made
twice: executed, then captured as a CUDA graph, from which C++ reads the launches. Later calls of
the kind are launched from there with their own tensors.

    call -- of a known kind? -- yes -- launches.cuh
                +- no -- Python's way, then recorded -- all accounted for? -- yes -- keep
                                                              +- no -- remember to take Python's way
"""

import sys
from functools import cache, wraps
from pathlib import Path
from types import SimpleNamespace

import torch
import triton

from ..common.host import launch
from ..common.host.arguments import check_arguments, takes
from .scratch import forget_scratch, places, scratch_of

# What launches.cuh's `replay` answers, as in recorded_call.h.
UNKNOWN = 0
DONE = 1
ORDINARY = 2
FUNCTIONS = ("replay", "begin", "end", "keep", "lend")


def recorded(interface):
    """Return a decorator of f(given, scratch), which makes it an entry point of the layer.

    f launches kernels on the current stream, all with programmatic dependent launch, and allocates
    nothing. given: what `check_arguments` returns, of one token or more; scratch: `scratch_of`'s.
    """

    library = launches()  # compiled on import, when the solution is built, not at its first call

    def decorate(function):
        @takes(interface)
        @wraps(function)
        def call(arguments):
            answer = ORDINARY
            # a profiler that wants to hear of each launch gets the ordinary ones
            if library and not launch.hooked():
                answer = _replay(library, arguments)
            if answer == DONE:
                return

            given = check_arguments(interface, arguments)
            device = given.hidden_states.device
            if len(given.hidden_states) == 0:
                return
            if device.type != "cuda":  # Triton's interpreter, or no data at all
                _execute(function, given, 0)
                return

            with torch.cuda.device(device):
                stream = torch._C._cuda_getCurrentRawStream(device.index)
                scratch = _execute(function, given, stream)
                if library and not torch.cuda.is_current_stream_capturing():
                    library.lend(device.index, stream, _extents(scratch, len(scratch.block)))
                    if answer == UNKNOWN:
                        _record(function, given, scratch, arguments)

        return call

    return decorate


def _replay(library, arguments):
    """Return C++'s answer to a call. Raises RuntimeError where it fails while it launches."""
    try:
        return library.replay(*arguments)
    except Exception as error:
        if str(error).startswith("replay: "):  # some kernels may have been launched
            device = next(value.device for value in arguments if isinstance(value, torch.Tensor))
            _forget(device, torch._C._cuda_getCurrentRawStream(device.index))
            raise
        # a tensor that C++ cannot be given: checks refuse it by name, or it is no matter
        return ORDINARY


def _execute(function, given, stream):
    """Launch the layer from Python. Return its scratch, which is not used again where it fails."""
    device = given.hidden_states.device
    try:
        scratch = scratch_of(device, stream, len(given.hidden_states))
        function(given, scratch)
        return scratch
    except BaseException:
        _forget(device, stream)
        raise


def _forget(device, stream):
    """Have neither Python nor C++ use a caller's scratch again."""
    forget_scratch(device, stream)
    library = launches()
    if library:
        library.lend(device.index, stream, [])


def _extents(scratch, num_bytes):
    """Return address and size of each part, the block's being num_bytes."""
    counts = [scratch.counts.data_ptr(), scratch.counts.nbytes]
    ends = [scratch.ends.data_ptr(), scratch.ends.nbytes]
    return [*counts, *ends, scratch.block.data_ptr(), num_bytes]


def _record(function, given, scratch, arguments):
    """Have calls like this one launched from C++. Executes nothing.

    Return why they are not, or an empty string.
    """
    library = launches()
    device = given.hidden_states.device
    try:
        stream = library.begin()
        try:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
                function(given, scratch)
        finally:
            graph = library.end(stream)
    except RuntimeError as error:  # what a capture does not allow
        return str(error)

    num_bytes = places(len(given.hidden_states))[1]
    extents = _extents(scratch, num_bytes)
    starts = [view.data_ptr() for view in scratch.views]
    return library.keep(graph, extents, starts, *arguments)


@cache
def launches():
    """Return the functions of launches.cuh by name.

    None where they are not supported, which is said once.
    """
    if not torch.cuda.is_available():
        return None
    try:
        functions = _compiled_functions()
    except Exception as error:  # whatever a compiler, or its absence, comes up with
        message = f"deepgemm: launching from Python, as the C++ part does not build: {error}"
        print(message, file=sys.stderr)
        return None
    return SimpleNamespace(**dict(zip(FUNCTIONS, functions, strict=True)))


def _compiled_functions():
    """Return FUNCTIONS of launches.cuh. Raises RuntimeError as `build_library` does."""
    # needs tvm_ffi, which may be missing
    from ..common.host.build_library import build_library, load_library

    texts = {"launches.cpp": Path(__file__).with_name("launches.cuh").read_text()}  # host code
    header = Path(launch.__file__).with_name("recorded_call.h")  # wherever packing put common/
    texts[header.name] = header.read_text()
    headers = Path(triton.__file__).parent / "backends/nvidia/include"
    library = build_library(
        "launches", texts, include_folders=[headers], headers_version=triton.__version__
    )
    return load_library(library).functions()

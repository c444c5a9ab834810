"""record: after the first call of its kind, a layer's kernels start from one call into C++.

main.py puts `@recorded` above its entry points; launches.cuh is the C++.

DeepGEMM's host code - checks, choice of a tile, the source of its kernel as a key, four tensor maps
- takes longer than a GEMM of few tokens, and so do launches from Python. All of it depends on
shapes, dtypes and alignment of the tensors and on the numbers among the arguments, never on what
the tensors hold or where they are. Calls that agree in all of these are of one kind. The first call
of a kind is made twice: executed, then captured as a CUDA graph, from which C++ reads the launches.
C++ makes the same launches for later calls of the kind, with the pointers of their own tensors.

    call: is its kind known?
      yes: launches.cuh launches all kernels
      no:  Python runs it, then records it. Is every pointer understood?
             yes: keep the launches for later calls of this kind
             no:  calls of this kind always run in Python
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
UNKNOWN = 0  # the call's kind is new
DONE = 1  # all kernels were launched
ORDINARY = 2  # calls of this kind run in Python
FUNCTIONS = ("replay", "begin", "end", "keep", "lend")


def recorded(interface):
    """Return a decorator: it turns f(args, scratch) into an entry point that takes an interface's
    arguments.

    f launches kernels on the current stream, all with programmatic dependent launch, and allocates
    nothing. args: the arguments, as `check_arguments` returns them, with one token or more.
    scratch: as `scratch_of` returns it.
    """

    library = (
        launches()
    )  # compiled on import, when the solution is built, not at its first call

    def decorate(function):
        @takes(interface)
        @wraps(function)
        def call(arguments):
            answer = ORDINARY
            # hooked: a profiler wants to hear of each launch, which C++ does not tell it
            if library and not launch.hooked():
                answer = _replay(library, arguments)
            if answer == DONE:
                return

            args = check_arguments(interface, arguments)
            device = args.hidden_states.device
            if len(args.hidden_states) == 0:
                return

            if device.type != "cuda":  # Triton's interpreter, or no data at all
                _execute(function, args, 0)
                return

            with torch.cuda.device(device):
                stream = torch._C._cuda_getCurrentRawStream(device.index)
                scratch = _execute(function, args, stream)
                if library and not torch.cuda.is_current_stream_capturing():
                    library.lend(
                        device.index, stream, _extents(scratch, len(scratch.block))
                    )
                    if answer == UNKNOWN:
                        _record(function, args, scratch, arguments)

        return call

    return decorate


def _replay(library, arguments):
    """Return UNKNOWN, DONE or ORDINARY. Raises RuntimeError where C++ fails while it launches."""
    try:
        return library.replay(*arguments)
    except Exception as error:
        if str(error).startswith("replay: "):  # some kernels may have been launched
            device = next(
                value.device for value in arguments if isinstance(value, torch.Tensor)
            )
            _forget(device, torch._C._cuda_getCurrentRawStream(device.index))
            raise
        # C++ cannot take one of the tensors: check_arguments names it, or allows it
        return ORDINARY


def _execute(function, args, stream):
    """Launch the layer from Python, and return its scratch, which is dropped after a failure."""
    device = args.hidden_states.device
    try:
        scratch = scratch_of(device, stream, len(args.hidden_states))
        function(args, scratch)
        return scratch
    except BaseException:
        _forget(device, stream)
        raise


def _forget(device, stream):
    """Make Python and C++ drop the scratch of this thread's calls on a stream."""
    forget_scratch(device, stream)
    library = launches()
    if library:
        library.lend(device.index, stream, [])


def _extents(scratch, num_bytes):
    """Return [address, bytes] of counts, ends and block, one after another; the block's are
    num_bytes.
    """
    counts = [scratch.counts.data_ptr(), scratch.counts.nbytes]
    ends = [scratch.ends.data_ptr(), scratch.ends.nbytes]
    return [*counts, *ends, scratch.block.data_ptr(), num_bytes]


def _record(function, args, scratch, arguments):
    """Capture the launches of a call, and make C++ launch later calls of its kind.

    Nothing is executed. Return an empty string, or the reason why C++ cannot.
    """
    library = launches()
    device = args.hidden_states.device
    try:
        stream = library.begin()
        try:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
                function(args, scratch)
        finally:
            graph = library.end(stream)
    except RuntimeError as error:  # what a capture does not allow
        return str(error)

    num_bytes = places(len(args.hidden_states))[1]
    extents = _extents(scratch, num_bytes)
    starts = [view.data_ptr() for view in scratch.views]
    return library.keep(graph, extents, starts, *arguments)


@cache
def launches():
    """Return a namespace with the FUNCTIONS of launches.cuh.

    None without a GPU, or where launches.cuh does not compile (a line on standard error says so).
    """
    if not torch.cuda.is_available():
        return None
    try:
        functions = _compiled_functions()
    except Exception as error:
        # any: a solution without launches.cuh is slower, not broken
        message = (
            f"deepgemm: launching from Python, as the C++ part does not build: {error}"
        )
        print(message, file=sys.stderr)
        return None
    return SimpleNamespace(**dict(zip(FUNCTIONS, functions, strict=True)))


def _compiled_functions():
    """Return FUNCTIONS of launches.cuh. Raises RuntimeError as `build_library` does."""
    # needs tvm_ffi, which may be missing
    from ..common.host.build_library import build_library, load_library

    texts = {
        "launches.cpp": Path(__file__).with_name("launches.cuh").read_text()
    }  # host code
    header = Path(launch.__file__).with_name(
        "recorded_call.h"
    )  # wherever packing put common/
    texts[header.name] = header.read_text()
    headers = Path(triton.__file__).parent / "backends/nvidia/include"
    library = build_library(
        "launches", texts, include_folders=[headers], headers_version=triton.__version__
    )
    return load_library(library).functions()

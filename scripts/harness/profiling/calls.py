"""Call a solution as FIB's timing does, with a mark around every call, so that a profiler can tell it from the rest.

As a program this is what ncu looks at: `python -m harness.profiling.calls SOLUTION GEOMETRY POINT...`.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from flashinfer_bench import Definition, Solution

# Private names, but the only way to do exactly what FIB's timing does between two calls.
from flashinfer_bench.bench.timing import _clear_cache, _clone_args, _get_empty_cache_for_benchmark
from flashinfer_bench.compile import BuilderRegistry, Runnable

from harness.core.errors import CannotRun, UserError
from harness.evaluation.calling import device_here, first_line, with_outputs
from harness.operators.catalogue import definition
from harness.packing import pack
from harness.profiling.points import choose_points, inputs_of

WARMUP_RUNS = 3
SEPARATOR = "spin_kernel"  # of torch.cuda._sleep: stands before each point's calls, and in no solution


class ProfileError(CannotRun):
    """A solution cannot be profiled; the message is one line for the user."""


def build(solution: Solution, full: Definition) -> Runnable:
    """Raises ProfileError for whatever the builder raises."""
    try:
        return BuilderRegistry.get_instance().build(full, solution)
    except Exception as error:
        raise ProfileError(f"{solution.name}: does not build: {first_line(error)}") from error


def call_repeatedly(
    runnable: Runnable, args: list, times: int, device: str, mark: Callable[[], AbstractContextManager] = nullcontext
) -> None:
    """Before each call L2 is flushed, the arguments are cloned and the device is waited for; mark() is around the call.

    Waiting for the call's end is inside the mark too. Raises ProfileError for whatever the solution raises.
    """
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    cache = _get_empty_cache_for_benchmark(device)
    with torch.no_grad():
        for _ in range(times):
            _clear_cache(cache)
            cloned = _clone_args(args)
            wait()
            try:
                with mark():
                    runnable(*cloned)
                    wait()
            except Exception as error:
                raise ProfileError(first_line(error)) from error


@contextmanager
def profiler_on():
    """ncu records what is launched inside."""
    torch.cuda.profiler.start()
    yield
    torch.cuda.profiler.stop()


def main(argv: list[str]) -> int:
    """A separator and one call for each point, after warm-up, with the profiler on for these alone."""
    name, geometry, *wanted = argv
    device = device_here()
    full = definition(geometry)
    runnable = build(pack.pack(name)[geometry], full)
    for point in choose_points(wanted, geometry):
        args = with_outputs(full, runnable, inputs_of(point, full, device), device)
        call_repeatedly(runnable, args, WARMUP_RUNS, device)
        with profiler_on():
            torch.cuda._sleep(1)
        call_repeatedly(runnable, args, 1, device, profiler_on)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)

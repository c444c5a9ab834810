"""Call a solution as FIB's timing does, with a mark around every call, so that a profiler can tell it from the rest.

As a program this is what ncu looks at: a separator and one call for each point, after warm-up, with the profiler on for
these alone. With --once it is what compute-sanitizer looks at, and ncu with a filter of one's own:

    compute-sanitizer --tool memcheck python -m harness.profiling.calls --once triton_fused_v2 full 80

The tool watches torch's kernels too, which make 1.4 GB of inputs: with `--kernel-name kernel_substring=fused_layer`, or
another kernel's name, it takes seconds instead of minutes. initcheck needs to see them all.
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from flashinfer_bench import Definition, Solution, Workload

# Private names, but the only way to do exactly what FIB's timing does between two calls.
from flashinfer_bench.bench.timing import _clear_cache, _clone_args, _get_empty_cache_for_benchmark
from flashinfer_bench.compile import BuilderRegistry, Runnable

from harness.core.errors import CannotRun, exit_with
from harness.judging.calling import call, device_here, first_line, with_outputs
from harness.operators.catalogue import GEOMETRIES, definition
from harness.packing import pack
from harness.profiling.points import choose_points, inputs_of, label

WARMUP_RUNS = 3


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


def nans_after_a_call(runnable: Runnable, point: Workload, full: Definition, device: str) -> int:
    """How many NaN one call leaves in an output full of them; printed too."""
    output = call(full, runnable, inputs_of(point, full, device), device)
    nans = int(output.isnan().sum())
    print(f"{label(point)}: {nans} NaN, mean |output| {output.float().abs().mean().item():.4g}")
    return nans


def main(argv: list[str]) -> int:
    """Exit status: 0, 1 if --once finds NaN, 2 for bad arguments."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m harness.profiling.calls", description=__doc__, formatter_class=form)
    parser.add_argument("solution")
    parser.add_argument("geometry", choices=list(GEOMETRIES))
    parser.add_argument("points", nargs="+", metavar="POINT", help="as W of moebench profile --workloads")
    parser.add_argument("--once", action="store_true", help="one call of each, without warm-up and profiler")
    args = parser.parse_args(argv)
    device, full = device_here(), definition(args.geometry)
    points = choose_points(args.points, args.geometry)
    runnable = build(pack.pack(args.solution)[args.geometry], full)
    if args.once:
        return 1 if sum(nans_after_a_call(runnable, point, full, device) for point in points) else 0
    for point in points:
        operands = with_outputs(full, runnable, inputs_of(point, full, device), device)
        call_repeatedly(runnable, operands, WARMUP_RUNS, device)
        with profiler_on():
            torch.cuda._sleep(1)
        call_repeatedly(runnable, operands, 1, device, profiler_on)
    return 0


if __name__ == "__main__":
    exit_with(main)

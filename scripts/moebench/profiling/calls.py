"""What is profiled: calls of a solution as FIB's timing makes them, on workloads that the user
names.

As a program this is what ncu looks at: a separator and one call for each workload, after warm-up,
with the profiler on for these alone.
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from flashinfer_bench import Definition, Solution, Workload
from flashinfer_bench.compile import BuilderRegistry, Runnable

from moebench.core import paths
from moebench.core.errors import CannotRun, exit_with
from moebench.judging import dataset
from moebench.judging.calling import device_here, first_line, seeded_inputs, with_outputs
from moebench.judging.fib import load_safetensors
from moebench.operators import routing_kinds, workloads
from moebench.operators.catalogue import GEOMETRIES, definition, definition_name
from moebench.packing import pack

WARMUP_RUNS = 3


def choose(wanted: list[str], geometry: str) -> dict[str, Workload]:
    """uuid, or KIND:T as it was given -> the workload. wanted: token counts, uuids, names of cases,
    or KIND:T.

    For [] it is four from the least T to the greatest. Raises UserError for one that names nothing.
    """
    kinds, known = routing_kinds.kinds_of(geometry), dataset.labelled(definition_name(geometry))
    found: dict[str, Workload] = {}
    if not wanted:
        by_length = sorted(
            (w for _, w in known if w.axes["seq_len"]), key=lambda w: w.axes["seq_len"]
        )
        wanted = [
            by_length[round(share * (len(by_length) - 1))].uuid for share in (0, 1 / 3, 2 / 3, 1)
        ]
    for text in wanted:
        kind, _, tokens = text.partition(":")
        if kind in kinds and tokens.isdecimal():
            found[text] = routing_kinds.workload(kind, int(tokens), geometry)[1]
        else:
            made_up = f"; KIND:T with KIND one of {', '.join(kinds)}" if kinds else ""
            found |= {
                workload.uuid: workload for _, workload in workloads.named(text, known, made_up)
            }
    return found


def build(solution: Solution, full: Definition) -> Runnable:
    """Raises CannotRun for whatever the builder raises."""
    try:
        return BuilderRegistry.get_instance().build(full, solution)
    except (Exception, SystemExit) as error:
        raise CannotRun(f"{solution.name}: does not build: {first_line(error)}") from error


def arguments(runnable: Runnable, workload: Workload, full: Definition, device: str) -> list:
    """FIB's inputs, the same in every run on one device, and outputs for a solution that writes
    into them.
    """
    (inputs,) = seeded_inputs(
        full, workload, 1, device, load_safetensors(full, workload, paths.ROOT)
    )
    return with_outputs(full, runnable, inputs, device)


def call_repeatedly(
    runnable: Runnable,
    args: list,
    times: int,
    device: str,
    mark: Callable[[], AbstractContextManager] = nullcontext,
) -> None:
    """As FIB does: before each call L2 is flushed, arguments are cloned and the device is waited
    for; mark() is around.

    Waiting for the call's end is inside the mark too. Raises CannotRun for whatever the solution
    raises.
    """
    cache = torch.empty(256 << 20, dtype=torch.int8, device=device)
    with torch.no_grad():
        for _ in range(times):
            cache.zero_()
            cloned = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
            torch.cuda.synchronize()
            try:
                with mark():
                    runnable(*cloned)
                    torch.cuda.synchronize()
            except (Exception, SystemExit) as error:
                raise CannotRun(first_line(error)) from error


def main(argv: list[str]) -> int:
    """Exit status: 0, or 2 for bad arguments."""
    parser = argparse.ArgumentParser("python -m moebench.profiling.calls", description=__doc__)
    parser.add_argument("solution")
    parser.add_argument("geometry", choices=list(GEOMETRIES))
    parser.add_argument(
        "workloads", nargs="+", metavar="W", help="as for moebench profile --workloads"
    )
    args = parser.parse_args(argv)
    device, full = device_here(), definition(args.geometry)
    runnable = build(pack.pack(args.solution)[args.geometry], full)
    for workload in choose(args.workloads, args.geometry).values():
        operands = arguments(runnable, workload, full, device)
        call_repeatedly(runnable, operands, WARMUP_RUNS, device)
        with torch.cuda.profiler.profile():
            torch.cuda._sleep(1)
        call_repeatedly(runnable, operands, 1, device, torch.cuda.profiler.profile)
    return 0


if __name__ == "__main__":
    exit_with(main)

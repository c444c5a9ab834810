"""Call a solution as FIB's timing does, on workloads that the user names. profile.py and
torch_profiler.py use it.

ncu profiles it as a program, `python -m moebench.profiling.calls SOLUTION LAYER_KEY WORKLOAD...`.
For each workload, after warm-up, the program launches a separator, by which ncu.py tells workloads
apart, and makes one call; the profiler is on for these two alone.
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from flashinfer_bench import Definition, Solution, Workload
from flashinfer_bench.compile import BuilderRegistry, Runnable

from moebench.core import paths
from moebench.core.errors import CannotRun, exit_with, first_line
from moebench.judging import dataset
from moebench.judging.calling import seeded_inputs, with_outputs
from moebench.judging.device import device_here
from moebench.judging.fib import load_safetensors
from moebench.operators import catalogue, workloads
from moebench.operators.catalogue import definition_name
from moebench.operators.routing import kinds as routing_kinds
from moebench.operators.workloads import LabelledWorkload
from moebench.packing import pack

WARMUP_RUNS = 3
# where the default workloads are in the list of all, by T
DEFAULT_SHARES = (0, 1 / 3, 2 / 3, 1)
FLUSH_BYTES = 256 << 20  # more than any L2


def choose_workloads(names: list[str], layer_key: str) -> dict[str, Workload]:
    """Return the workloads that a user names, by uuid or KIND:T.

    names: token counts, uuids or names of the layer's recorded workloads, or KIND:T as
    "uniform:300" of a workload that is made now; [] for four recorded ones from the least T to the
    greatest. Raises UserError for a name that means nothing.
    """
    kinds = routing_kinds.kinds_of(layer_key)
    recorded = dataset.labelled(definition_name(layer_key))
    # for the message
    or_a_kind = f"; KIND:T with KIND one of {', '.join(kinds)}" if kinds else ""

    chosen = {}
    for name in names or default_workloads(recorded):
        kind, _, tokens = name.partition(":")
        if kind in kinds and tokens.isdecimal():
            chosen[name] = routing_kinds.workload(kind, int(tokens), layer_key).workload
        else:
            for labelled in workloads.named(name, recorded, or_a_kind):
                chosen[labelled.workload.uuid] = labelled.workload
    return chosen


def default_workloads(recorded: list[LabelledWorkload]) -> list[str]:
    """Return the uuids of four workloads, from the least T above 0 to the greatest."""
    with_tokens = []
    for labelled in recorded:
        if labelled.workload.axes["seq_len"]:
            with_tokens.append(labelled.workload)
    with_tokens.sort(key=workloads.tokens)
    last = len(with_tokens) - 1
    return [with_tokens[round(share * last)].uuid for share in DEFAULT_SHARES]


def build(solution: Solution, definition: Definition) -> Runnable:
    """Return a solution as FIB builds it. Raises CannotRun for whatever the builder raises."""
    try:
        return BuilderRegistry.get_instance().build(definition, solution)
    except (Exception, SystemExit) as error:
        raise CannotRun(
            f"{solution.name}: does not build: {first_line(error)}"
        ) from error


def arguments(
    runnable: Runnable, workload: Workload, definition: Definition, device: str
) -> list:
    """Return a runnable's arguments: a workload's inputs, the same in every run on one device, and
    new outputs if it writes into its arguments.
    """
    stored = load_safetensors(definition, workload, paths.ROOT)
    (inputs,) = seeded_inputs(definition, workload, 1, device, stored)
    return with_outputs(definition, runnable, inputs, device)


def call_repeatedly(
    runnable: Runnable,
    args: list,
    times: int,
    device: str,
    mark: Callable[[], AbstractContextManager] = nullcontext,
) -> None:
    """Call as FIB does: before each call L2 is flushed, arguments are cloned, the device is idle.

    mark: returns a context, in which a call is made and the device waited for. Raises CannotRun for
    whatever the solution raises.
    """
    cache = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    with torch.no_grad():
        for _ in range(times):
            cache.zero_()
            copies = copied(args)
            torch.cuda.synchronize()
            try:
                with mark():
                    runnable(*copies)
                    torch.cuda.synchronize()
            except (Exception, SystemExit) as error:
                raise CannotRun(first_line(error)) from error


def copied(args: list) -> list:
    """Return the arguments with new tensors of the same values."""
    copies = []
    for arg in args:
        copies.append(arg.clone() if isinstance(arg, torch.Tensor) else arg)
    return copies


def main(argv: list[str]) -> int:
    """Call a solution under ncu. Returns the exit status: 0, or 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        "python -m moebench.profiling.calls", description=__doc__
    )
    parser.add_argument("solution")
    parser.add_argument("layer_key", choices=list(catalogue.layer_sizes()))
    workloads_help = "as for moebench profile --workloads"
    parser.add_argument("workloads", nargs="+", metavar="W", help=workloads_help)
    args = parser.parse_args(argv)

    device = device_here()
    definition = catalogue.definition(args.layer_key)
    packed = pack.pack(args.solution)[args.layer_key]
    runnable = build(packed, definition)
    for workload in choose_workloads(args.workloads, args.layer_key).values():
        call_args = arguments(runnable, workload, definition, device)
        call_repeatedly(runnable, call_args, WARMUP_RUNS, device)
        with torch.cuda.profiler.profile():
            torch.cuda._sleep(1)  # the separator, whose kernel is gpu_clock.MARK
        call_repeatedly(runnable, call_args, 1, device, torch.cuda.profiler.profile)
    return 0


if __name__ == "__main__":
    exit_with(main)

"""Call a solution once, without warm-up: the target for compute-sanitizer, and for ncu with a filter of one's own.

    compute-sanitizer --tool memcheck python -m harness.profiling.once triton_fused_v2 80

The tool watches torch's kernels too, which make 1.4 GB of inputs: with `--kernel-name kernel_substring=fused_layer`, or
another kernel's name, it takes seconds instead of minutes. initcheck needs to see them all.

The output is filled with NaN before the call. Exit status: 0, 1 if any is left after it, 2 for bad arguments.
"""

import argparse
import sys

import torch

from harness.core.errors import UserError
from harness.evaluation.calling import call, device_here
from harness.evaluation.selection import choose_geometry, select
from harness.operators.catalogue import definition
from harness.profiling.calls import build
from harness.profiling.points import choose_points, inputs_of, label


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m harness.profiling.once",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("solution")
    parser.add_argument(
        "workloads", nargs="+", metavar="W", help="T of a workload, its uuid, or KIND:T as in moebench profile"
    )
    args = parser.parse_args(argv)
    geometry = choose_geometry(None, torch.cuda.is_available(), [args.solution])
    full, device, left = definition(geometry), device_here(), 0
    points = choose_points(args.workloads, geometry)
    runnable = build(select([args.solution], geometry, print)[0][args.solution], full)
    for point in points:
        output = call(full, runnable, inputs_of(point, full, device), device)
        nans = int(output.isnan().sum())
        print(f"{args.solution} {label(point)}: {nans} NaN, mean |output| {output.float().abs().mean().item():.4g}")
        left += nans
    return 1 if left else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)

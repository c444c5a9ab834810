"""Judge solutions on workloads with FlashInfer-Bench and print them side by side.

With a CUDA device this is FIB's benchmark on the first definition, DeepSeek-V3's layer on one rank
of eight. Without one it is the same job on a small one through Triton's interpreter, which shows
what is correct, not what is fast. Several definitions, and `all` that are for this machine and
these solutions, get a table each. With --tokens workloads are made at any token count. With --ray
the GPUs of a cluster share the work.

FILE.json is a FIB Solution of somebody else, or a folder of them: each is judged in a process of
its own, beside those here that --solutions names. Their traces are kept with --output alone.
"""

import argparse
import logging
from contextlib import nullcontext
from pathlib import Path

from moebench.core.arguments import count, output_file
from moebench.core.provenance import CLOCKS
from moebench.judging import on_ray
from moebench.judging.judge import PASSED, Here
from moebench.judging.plan import EVERY, plan_of
from moebench.judging.tolerances import TOLERANCES
from moebench.operators.routing.kinds import KINDS
from moebench.reports import run_table
from moebench.reports.table import console
from moebench.results import staleness, trace_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE.json",
        help="solutions of others; they stand before --solutions",
    )
    add(
        "--solutions",
        nargs="+",
        metavar="NAME",
        help="default: all of the operator's; none with FILE",
    )
    which = (
        f"or {EVERY}, a name; default: the solutions' first, that is full with a GPU, else small"
    )
    add("--definition", nargs="+", default=[], metavar="KEY", help=which)
    add(
        "--dataset",
        type=Path,
        metavar="PATH",
        help="definitions, workloads and tensors of this FIB data set instead",
    )
    add(
        "--workloads",
        nargs="+",
        default=[],
        metavar="W",
        help="T, M=8 or so, a uuid or a name; default: all",
    )
    add(
        "--tokens",
        nargs="+",
        type=count(0),
        default=[],
        metavar="T",
        help="make workloads of so many tokens instead",
    )
    add(
        "--routing",
        choices=KINDS,
        help=f"of --tokens; default: {KINDS[0]}, as the recorded workloads have it",
    )
    add("--tolerance", choices=list(TOLERANCES), default="relaxed", help="default: relaxed")
    how = "events: CUDA events, as FIB 0.1.2; gpu: the GPU's activity, as FIB's main branch; default: as this FIB"
    add("--clock", choices=CLOCKS, help=how)
    add("--warmup-runs", type=count(0), default=10, help="default: 10; with a GPU only")
    add("--iterations", type=count(), default=50, help="default: 50; with a GPU only")
    add("--num-trials", type=count(), help="inputs per workload; default: 3 with a GPU, else 1")
    add(
        "--timeout",
        type=count(),
        default=300,
        help="seconds per solution and workload; default: 300",
    )
    add(
        "--save",
        action=argparse.BooleanOptionalAction,
        help="keep the traces; default: with a GPU only",
    )
    kept = "keep the traces here; default: below traces/, by clock gpu records/"
    add("--output", type=output_file, metavar="FILE", help=kept)
    add(
        "--resume",
        action="store_true",
        help="judge only what is not kept yet or stale, by the same protocol here",
    )
    add(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="on a Ray cluster; default: this machine's",
    )
    add(
        "--verbose",
        action="store_true",
        help="what solutions print; a diagnosis of every wrong output",
    )


def main(args: argparse.Namespace) -> int:
    screen = console()
    logging.getLogger("flashinfer_bench").setLevel(logging.CRITICAL)  # it becomes a verdict
    with nullcontext(Here()) if args.ray is None else on_ray.connected(args.ray or None) as place:
        if place.text:
            screen.print(f"{place.text}: waiting for the first")
        device = place.survey()
        if not device.on_gpu:
            screen.print("No CUDA device: Triton's interpreter runs the kernels, so no times.")
        plan = staleness.checked(plan_of(args, device), args.resume)
        passed = all(
            trace.evaluation.status == PASSED for part in plan.parts.values() for trace in part.kept
        )
        with run_table.shown(plan, place.text, screen) as show:
            for outcome in place.outcomes(plan, screen.print):
                part = plan.parts[outcome.cell.definition]
                if part.keeps(outcome.cell):  # at once: a run that is cut short keeps what it has
                    trace_files.merge(
                        part.path, [verdict.trace for verdict in outcome.verdicts.values()]
                    )
                show(outcome)
                passed = passed and outcome.passed
    return 0 if passed else 1

"""Evaluate solutions on workloads with FlashInfer-Bench and print them side by side.

With a CUDA device this is FIB's benchmark on the first definition, DeepSeek-V3's layer on one rank
of eight. Without one it is the same job on a small one through Triton's interpreter, which shows
what is correct, not what is fast. Several definitions, and `all` that are for this machine and
these solutions, get a table each. With --tokens workloads are made at any token count. With --ray
the GPUs of a cluster share the work.

FILE.json is a FIB Solution of somebody else, or a folder of them: each is evaluated in a process of
its own, beside those here that --solutions names. Their traces are kept with --output alone.
"""

import argparse
import logging
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

from moebench.core.arguments import count, output_file
from moebench.core.provenance import CLOCKS
from moebench.judging import on_ray
from moebench.judging.evaluate import Outcome, ThisMachine
from moebench.judging.plan import EVERY, Plan, RunRequest
from moebench.judging.planning import plan_run
from moebench.judging.tolerances import TOLERANCES
from moebench.operators.routing.kinds import KINDS
from moebench.reports import run_table
from moebench.reports.terminal import console
from moebench.results import staleness, trace_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_what_is_run(parser)
    add_how_it_is_run(parser)
    add_what_becomes_of_it(parser)
    parser.set_defaults(**vars(RunRequest()))


def add_what_is_run(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE.json",
        help="solutions of others; they stand before --solutions",
    )
    option(
        "--solutions",
        nargs="+",
        metavar="NAME",
        help="default: all of the operator's; none with FILE",
    )
    option(
        "--definition",
        dest="definitions",
        nargs="+",
        metavar="KEY",
        help=f"or {EVERY}, a name; default: the solutions' first, that is full with a GPU, "
        "else small",
    )
    option(
        "--dataset",
        type=Path,
        metavar="PATH",
        help="definitions, workloads and tensors of this FIB data set instead",
    )
    option(
        "--workloads",
        nargs="+",
        metavar="W",
        help="T, M=8 or so, a uuid or a name; default: all",
    )
    option(
        "--tokens",
        nargs="+",
        type=count(0),
        metavar="T",
        help="make workloads of so many tokens instead",
    )
    option(
        "--routing",
        choices=KINDS,
        help=f"of --tokens; default: {KINDS[0]}, as the recorded workloads have it",
    )


def add_how_it_is_run(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--tolerance", choices=list(TOLERANCES), help="default: relaxed")
    option(
        "--clock",
        choices=CLOCKS,
        help="events: CUDA events, as FIB 0.1.2; gpu: the GPU's activity, as FIB's main branch; "
        "default: as this FIB",
    )
    option("--warmup-runs", type=count(0), help="default: 10; with a GPU only")
    option("--iterations", type=count(), help="default: 50; with a GPU only")
    option(
        "--num-trials",
        type=count(),
        help="inputs per workload; default: 3 with a GPU, else 1",
    )
    option(
        "--runs",
        type=count(),
        metavar="N",
        help="run everything N times, in turns: each run is kept, and tables show the median",
    )
    option(
        "--timeout",
        dest="timeout_seconds",
        type=count(),
        help="seconds per solution and workload; default: 300",
    )
    option(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="on a Ray cluster; default: this machine's",
    )


def add_what_becomes_of_it(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "--save",
        action=argparse.BooleanOptionalAction,
        help="keep the traces; default: with a GPU only",
    )
    option(
        "--output",
        type=output_file,
        metavar="FILE",
        help="keep the traces here; default: below traces/, by clock gpu records/gpu_clock/",
    )
    option(
        "--resume",
        action="store_true",
        help="evaluate only what is not kept yet, or stale, or not N times, by the same protocol "
        "here",
    )
    option(
        "--verbose",
        action="store_true",
        help="what solutions print; a diagnosis of every wrong output",
    )


def main(args: argparse.Namespace) -> int:
    """Plan a run, then evaluate, record and show task by task."""
    values = {field.name: getattr(args, field.name) for field in fields(RunRequest)}
    request = RunRequest(**values)
    screen = console()
    # it becomes a result
    logging.getLogger("flashinfer_bench").setLevel(logging.CRITICAL)

    ray = request.ray
    place_of_run = nullcontext(ThisMachine())
    if ray is not None:
        place_of_run = on_ray.connected(ray or None)
    with place_of_run as place:
        if place.text:
            screen.print(f"{place.text}: waiting for the first")
        device = place.survey()
        if not device.on_gpu:
            screen.print(
                "No CUDA device: Triton's interpreter runs the kernels, so no times."
            )

        plan = staleness.left_to_run(plan_run(request, device), request.resume)
        passed = plan.kept_have_passed
        with run_table.shown(plan, place.text, screen) as show:
            for outcome in place.outcomes(plan, screen.print):
                # at once: a run that is cut short keeps what it has
                record(plan, outcome)
                show(outcome)
                passed = passed and outcome.passed
    return 0 if passed else 1


def record(plan: Plan, outcome: Outcome) -> None:
    """Write an outcome's traces into the file that they are kept in, if there is one."""
    part = plan.parts[outcome.task.definition_name]
    if part.keeps(outcome.task):
        traces = [solution.trace for solution in outcome.evaluated.values()]
        trace_files.merge(part.path, traces)

"""Run solutions on workloads, judge them by FlashInfer-Bench and print one side-by-side table.

With a CUDA device this is FIB's benchmark on the first definition, DeepSeek-V3's layer on one rank of eight. Without
one it is the same job on a small one through Triton's interpreter, which shows what is correct, not what is fast.
Several definitions, and `all` that are for this machine and these solutions, get a table each.
"""

import argparse
import logging
import sys
from pathlib import Path

import torch
from rich.console import Console

from harness.core import paths
from harness.core.arguments import Names, count, output_file, writable
from harness.core.errors import CannotRun, UserError
from harness.core.provenance import CLOCKS
from harness.evaluation import memory, run
from harness.evaluation.calling import device_here
from harness.evaluation.selection import choose_geometry, select
from harness.evaluation.tolerances import TOLERANCES
from harness.operators.arguments import add_definitions
from harness.operators.catalogue import FULL, GEOMETRIES, definition_name
from harness.packing import eligibility, manifest
from harness.report import run_table
from harness.report.progress import progress
from harness.results import trace_files

EVERY = "all"
WIDTH = 100  # of what is no terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--solutions", nargs="+", action=Names, default=[], metavar="NAME", help="default: all of the operator's")
    which = f"or {EVERY}; default: the solutions' first, that is full with a GPU, else small"
    add_definitions(parser, every=EVERY, default=[], help=which)
    add("--workloads", nargs="+", action=Names, default=[], metavar="W", help="T, a uuid or a name; default: all")
    add("--tolerance", choices=list(TOLERANCES), default="relaxed", help="default: relaxed")
    how = "events: CUDA events, as FIB 0.1.2; gpu: the GPU's activity, as FIB's main branch; default: events"
    add("--clock", choices=CLOCKS, default="events", help=how)
    add("--warmup-runs", type=count(0), default=10, help="default: 10; with a GPU only")
    add("--iterations", type=count(), default=50, help="default: 50; with a GPU only")
    add("--num-trials", type=count(), help="inputs per workload; default: 3 with a GPU, else 1")
    add("--timeout", type=count(), default=300, help="seconds per solution and workload; default: 300")
    add("--save", action=argparse.BooleanOptionalAction, help="keep the traces; default: with a GPU only")
    add("--verbose", action="store_true", help="the whole log of what fails; a diagnosis of every wrong output")
    add(
        "--output",
        type=output_file,
        metavar="FILE",
        help="keep the traces here; default: below traces/, by clock gpu docs/data/",
    )


def trace_file(args: argparse.Namespace, name: str) -> Path | None:
    """The file that the definition's traces are kept in, or None. Raises UserError for a file of something else."""
    if not (args.save if args.save is not None else torch.cuda.is_available() or args.output is not None):
        return None
    path = args.output or writable(paths.trace_file(name, clock=args.clock))
    try:
        trace_files.load(path)
    except ValueError as error:  # before anything runs, not when there is something to add to it
        raise UserError(f"{path}: has lines that are no traces; fix it, or choose another --output") from error
    return path


def every(solutions: list[str], on_gpu: bool) -> list[str | None]:
    """The definitions for this machine that these solutions serve, or all of them; [None] where there is none."""
    served = {key for name in manifest.choose(solutions) for key in manifest.read_manifest(name).definitions}
    return [key for key in GEOMETRIES if key in served and (key in FULL) == on_gpu] or [None]


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)
    logging.getLogger("flashinfer_bench").setLevel(logging.ERROR)
    on_gpu = torch.cuda.is_available()
    wanted = every(args.solutions, on_gpu) if EVERY in args.definition else args.definition or [None]
    if not on_gpu and args.clock == "gpu":
        raise CannotRun("--clock gpu: takes times and needs a CUDA device; torch sees none")
    if not on_gpu:
        console.print("No CUDA device: Triton's interpreter runs the kernels, so no times.")
    passed = []
    for each in wanted:
        try:
            passed.append(run_definition(choose_geometry(each, on_gpu, args.solutions), args, console))
        except CannotRun as error:  # one of several that these solutions do not serve, or that does not fit
            if len(wanted) == 1:
                raise
            console.print(f"{definition_name(each)}\n{error}", soft_wrap=True)
    if not passed:
        raise CannotRun(f"none of the {len(wanted)} definitions could be run here")
    return 0 if all(passed) else 1


def run_definition(geometry: str, args: argparse.Namespace, console: Console) -> bool:
    """Judge the solutions on the definition's workloads, print the table; whether all passed.

    Raises UserError, and CannotRun where nothing can be run.
    """
    on_gpu = torch.cuda.is_available()
    name, tolerance = definition_name(geometry), TOLERANCES[args.tolerance]
    config = tolerance.config(
        warmup_runs=args.warmup_runs,
        iterations=args.iterations,
        num_trials=args.num_trials or (3 if on_gpu else 1),
        timeout_seconds=args.timeout,
    )
    path = trace_file(args, name)
    todo, judged = run.load_workloads(geometry, args.workloads), []
    solutions, skipped = select(args.solutions, geometry, console.print)
    keep_worker = True
    if on_gpu:
        known = memory.free(), geometry, config.num_trials, len(solutions)
        todo, too_large = memory.fitting(todo, *known)
        skipped += too_large
        keep_worker = memory.keeps_worker(todo, *known)
        if not keep_worker:
            console.print("Each workload gets a worker process of its own: with one for all memory would not suffice.")
    conditions = tolerance, config, device_here(), args.command_line, args.verbose, keep_worker, args.clock
    reasons: dict[str, list[str]] = {}
    try:
        with run.judging(geometry, solutions, *conditions) as judge, progress(console, len(todo)) as started:
            for label, workload in todo:
                started(len(judged), label)
                outcome = judge(label, workload)
                if path:  # at once: a run that is cut short keeps what it has measured
                    trace_files.merge(path, list(outcome.traces.values()))
                judged.append(outcome)
                for line in run_table.lines(outcome, on_gpu, reasons):
                    console.print(line if line.startswith(" ") else f"[{len(judged)}/{len(todo)}] {line}")
                for solution, log in outcome.logs.items() if args.verbose else ():
                    console.print(f"the log of {solution}:\n{log}", soft_wrap=True)
    finally:  # after Ctrl-C, too
        if judged:
            said = ", by the GPU's clock" if args.clock == "gpu" else ""
            console.print(f"{name}\n{eligibility.here()}, {tolerance}{said}")
            console.print(run_table.table(judged, list(solutions), skipped, on_gpu).terminal())
        if judged and path:
            console.print(f"{sum(len(outcome.traces) for outcome in judged)} traces saved in {path}", soft_wrap=True)
    return all(outcome.passed for outcome in judged)

"""Where a solution's time goes: its kernels by stage, on chosen workloads; several solutions side by side.

Calls are FIB's: inputs cloned and L2 flushed before each, after warm-up; what the harness runs is kept apart. Without
a CUDA device it is a small geometry through Triton's interpreter, in CPU time, which says nothing about a GPU.
Exit status: 0, 1 when nothing could be profiled or a figure is doubtful or missing (the tables say which), 2 for bad
arguments.
"""

import argparse
import io
import sys

import torch
from rich.console import Console

from harness.core.arguments import Names, count, output_file, output_folder
from harness.core.atomic_file import write_atomically
from harness.core.errors import CannotRun
from harness.judging.calling import device_here
from harness.judging.selection import choose_geometry, select
from harness.operators.catalogue import add_definition
from harness.operators.routing_kinds import KINDS
from harness.profiling.points import choose_points
from harness.profiling.profile import Job, profile_all
from harness.profiling.record import ProfileRecord
from harness.report import profiles

FORMATS = ("table", "markdown", "json")
WORKLOADS = f"T, a uuid, or KIND:T, the FP8 layer with a made-up routing ({', '.join(KINDS)}); default: a few"
WIDTH = 160  # of what is no terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    several = "several are put side by side, with ratios to the first"
    add("solutions", nargs="+", action=Names, metavar="NAME", help=several)
    add_definition(parser, help="default: the first solution's own, full with a GPU, else small")
    add("--workloads", nargs="+", action=Names, default=[], metavar="W", help=WORKLOADS)
    add("--calls", type=count(), help="default: 10 with a GPU, else 2")
    add("--counters", action="store_true", help="hardware counters of each launch, through ncu")
    kept = "keep torch.profiler's trace; several get a suffix each"
    add("--chrome-trace", type=output_file, metavar="FILE", help=kept)
    add("--format", choices=FORMATS, default="table", help="default: table")
    add("--output", type=output_file, metavar="FILE", help="write it there instead of printing it")
    records = "keep a record of each solution there, as in docs/data/profile/"
    add("--records", type=output_folder, metavar="FOLDER", help=records)


def show(records: list[ProfileRecord], args: argparse.Namespace) -> None:
    """Print, or write to args.output, in args.format."""
    tables, file = profiles.tables(records), io.StringIO() if args.output else sys.stdout
    if args.format == "json":
        file.write(profiles.as_json(records))
    elif args.format == "markdown":
        file.write("\n\n".join(table.markdown(titled=True) for table in tables) + "\n")
    else:
        console = Console(file=file, width=None if file.isatty() else WIDTH)
        for table in tables:
            console.print(table.terminal())
    if args.output:
        write_atomically(args.output, file.getvalue())


def main(args: argparse.Namespace) -> int:
    progress = Console(stderr=True, width=None if sys.stderr.isatty() else WIDTH, highlight=False, markup=False)
    failures, records = [], []

    def say(line: str, failed: bool = False) -> None:
        if failed:
            failures.append(line)
        progress.print(f"FAILED {line}" if failed else line, style="bold red" if failed else None)

    on_gpu = torch.cuda.is_available()
    if args.counters and not on_gpu:
        raise CannotRun("--counters needs a CUDA device; torch sees none")
    geometry = choose_geometry(args.definition, on_gpu, args.solutions)
    points = choose_points(args.workloads, geometry)
    solutions, skipped = select(args.solutions, geometry, say)
    for line in skipped:
        say(line)
    if not on_gpu:
        say("No CUDA device: CPU time of Triton's interpreter, which says nothing about a GPU.")
    calls = args.calls or (10 if on_gpu else 2)
    how = {"calls": calls, "counters": args.counters, "chrome_trace": args.chrome_trace, "command": args.command_line}
    try:
        for record in profile_all(Job(solutions, geometry, points, device_here(), say=say, **how)):
            records.append(record)
            if args.records:
                text = record.model_dump_json(indent=2, exclude_defaults=True)
                write_atomically(args.records / f"{record.solution}.json", f"{text}\n")
    finally:  # after Ctrl-C, too
        if records:
            show(records, args)
    doubtful = any(workload.warnings for record in records for workload in record.workloads)
    return 1 if failures or doubtful else 0

"""Where a solution's time goes: its kernels by stage, on chosen workloads; several solutions side
by side.

Calls are FIB's: inputs cloned and L2 flushed before each, after warm-up; what the harness runs is
kept apart. It needs a CUDA device. Exit status: 0, 1 when nothing could be profiled or a figure is
doubtful or missing (the table says which), 2 for bad arguments.
"""

import argparse
import sys

import torch

from moebench.core.arguments import count, output_folder
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun
from moebench.judging.calling import device_here
from moebench.judging.selection import choose_geometry, select
from moebench.operators.catalogue import geometry_named
from moebench.operators.routing_kinds import KINDS
from moebench.profiling.calls import choose
from moebench.profiling.profile import Job, profile_all
from moebench.profiling.record import ProfileRecord
from moebench.reports.profiles import table
from moebench.reports.table import console

WORKLOADS = f"T, a uuid, or KIND:T, the FP8 layer with a made-up routing ({', '.join(KINDS)}); default: a few"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("solutions", nargs="+", metavar="NAME", help="several stand in one table")
    add(
        "--definition", type=geometry_named, metavar="KEY", help="default: the first solution's own"
    )
    add("--workloads", nargs="+", default=[], metavar="W", help=WORKLOADS)
    add("--calls", type=count(), default=10, help="default: 10")
    add("--counters", action="store_true", help="hardware counters of each launch, through ncu")
    records = "keep a record of each solution there, as in records/profile/"
    add("--records", type=output_folder, metavar="FOLDER", help=records)


def main(args: argparse.Namespace) -> int:
    failures: list[str] = []
    records: list[ProfileRecord] = []

    def say(line: str, failed: bool = False) -> None:
        failures.extend([line] if failed else [])
        print(f"FAILED {line}" if failed else line, file=sys.stderr, flush=True)

    geometry = choose_geometry(args.definition, True, args.solutions)
    workloads = choose(args.workloads, geometry)
    if not torch.cuda.is_available():
        raise CannotRun("moebench profile needs a CUDA device; torch sees none")
    solutions = select(args.solutions, geometry, say)
    how = {"calls": args.calls, "counters": args.counters, "command": args.command_line}
    try:
        for record in profile_all(
            Job(solutions, geometry, workloads, device_here(), say=say, **how)
        ):
            records.append(record)
            if args.records:
                text = record.model_dump_json(indent=2, exclude_defaults=True)
                write_atomically(args.records / f"{record.solution}.json", f"{text}\n")
    finally:  # after Ctrl-C, too
        if records:
            console().print(table(records).terminal())
    doubtful = any(workload.warnings for record in records for workload in record.workloads)
    return 1 if failures or doubtful else 0

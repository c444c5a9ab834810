"""Where a solution's time goes: its kernels by stage, on chosen workloads; several solutions side
by side.

Calls are FIB's: inputs cloned and L2 flushed before each, after warm-up; what the harness runs is
kept apart. It needs a CUDA device. Exit status: 0, 1 when nothing could be profiled or a figure is
doubtful or missing (the table says which), 2 for bad arguments.
"""

import argparse
import sys
from dataclasses import replace

import torch

from moebench.core.arguments import count, output_folder
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun
from moebench.judging.device import device_here
from moebench.judging.selection import choose_layer, select
from moebench.operators.catalogue import layer_key_named
from moebench.operators.routing.kinds import KINDS
from moebench.profiling.calls import choose_workloads
from moebench.profiling.profile import Job, profile_all
from moebench.profiling.record import ProfileRecord
from moebench.reports.profiles import table
from moebench.reports.table import Table
from moebench.reports.terminal import InTerminal, console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("solutions", nargs="+", metavar="NAME", help="several stand in one table")
    add(
        "--definition",
        type=layer_key_named,
        metavar="KEY",
        help="default: the first solution's own",
    )

    add(
        "--workloads",
        nargs="+",
        default=[],
        metavar="W",
        help="T, a uuid, or KIND:T, the FP8 layer with a made-up routing "
        f"({', '.join(KINDS)}); default: a few",
    )
    add("--calls", type=count(), default=10, help="default: 10")
    add(
        "--counters",
        action="store_true",
        help="hardware counters of each launch, through ncu",
    )
    add(
        "--records",
        type=output_folder,
        metavar="FOLDER",
        help="keep a record of each solution there, as in records/profile/",
    )


class Progress:
    """Prints lines for the user, and remembers whether one of them said that something failed."""

    def __init__(self):
        self.has_failed = False

    def say(self, line: str, failed: bool = False) -> None:
        self.has_failed = self.has_failed or failed
        shown = f"FAILED {line}" if failed else line
        print(shown, file=sys.stderr, flush=True)


def main(args: argparse.Namespace) -> int:
    layer_key = choose_layer(args.definition, True, args.solutions)
    workloads = choose_workloads(args.workloads, layer_key)
    if not torch.cuda.is_available():
        raise CannotRun("moebench profile needs a CUDA device; torch sees none")

    progress = Progress()
    job = Job(
        solutions=select(args.solutions, layer_key, progress.say),
        layer_key=layer_key,
        workloads=workloads,
        device=device_here(),
        calls=args.calls,
        counters=args.counters,
        command=args.command_line,
        say=progress.say,
    )
    records = []
    try:
        for record in profile_all(job):
            records.append(record)
            if args.records:
                text = record.model_dump_json(indent=2, exclude_defaults=True)
                write_atomically(args.records / f"{record.solution}.json", f"{text}\n")
    finally:  # after Ctrl-C, too
        if records:
            console().print(InTerminal(titled_table(records)))

    is_doubtful = False
    for record in records:
        is_doubtful |= any(workload.warnings for workload in record.workloads)
    return 1 if progress.has_failed or is_doubtful else 0


def titled_table(records: list[ProfileRecord]) -> Table:
    """Return the table of the records, whose title says what was measured, where and how.

    records: of one definition and machine.
    """
    drawn = table(records)
    first = records[0]
    protocol = first.provenance.protocol or "unknown protocol"
    return replace(drawn, title=f"{first.definition}\n{drawn.title}\n{protocol}")

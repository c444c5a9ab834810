"""Where a solution's time goes: its kernels by stage, on chosen workloads; several solutions side by side.

Calls are FIB's: inputs cloned and L2 flushed before each, after warm-up; what the harness runs is kept apart. Without
a CUDA device it is a small geometry through Triton's interpreter, in CPU time, which says nothing about a GPU.
Exit status: 0, 1 when nothing could be profiled or a figure is doubtful or missing (the tables say which), 2 for bad
arguments.
"""

import argparse
import json
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from rich.console import Console

from harness.core.arguments import count
from harness.core.atomic_file import write_atomically
from harness.core.errors import CannotRun
from harness.operators import catalogue
from harness.operators.routing_kinds import KINDS
from harness.packing import manifest
from harness.profiling import side_by_side
from harness.profiling.calls import device_here
from harness.profiling.points import choose_points
from harness.profiling.profile import Job, profile_all
from harness.profiling.record import ProfileRecord
from harness.report import profiles

FORMATS = ("table", "markdown", "json")
WIDTH = 160  # of what is no terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("solutions", nargs="+", metavar="NAME", help="several are put side by side, with ratios to the first")
    add(
        "--workloads",
        nargs="+",
        default=[],
        metavar="W",
        help=f"T, a uuid, or KIND:T, the FP8 layer with a made-up routing ({', '.join(KINDS)}); default: a few",
    )
    add("--calls", type=count(), help="default: 10 with a GPU, else 2")
    add("--counters", action="store_true", help="hardware counters of each launch, through ncu")
    add("--chrome-trace", type=Path, metavar="FILE", help="keep torch.profiler's trace; several get a suffix each")
    add("--format", choices=FORMATS, default="table", help="default: table")
    add("--output", type=Path, metavar="FILE", help="write it there instead of printing it")
    add("--records", type=Path, metavar="FOLDER", help="keep a record of each solution there, as in docs/data/profile/")


def job_of(args: argparse.Namespace) -> Job:
    """Raises UserError for options that do not go together or with this machine."""
    on_gpu = torch.cuda.is_available()
    if args.counters and not on_gpu:
        raise CannotRun("--counters needs a CUDA device; torch sees none")
    served = manifest.read_manifest(manifest.choose(args.solutions)[0]).definitions
    geometry = catalogue.geometry_here(served, on_gpu) or catalogue.geometry_here(list(catalogue.GEOMETRIES), on_gpu)
    points = choose_points(args.workloads, geometry)
    calls = args.calls or (10 if on_gpu else 2)

    def chrome_trace(solution, point):
        path = args.chrome_trace
        if path is None or len(args.solutions) * len(points) == 1:
            return path
        return path.with_name(f"{path.stem}-{solution}-{point.uuid.replace(':', '-')}{path.suffix}")

    command = ["moebench", "profile", *args.solutions, "--workloads", *(p.uuid for p in points)]
    command += ["--calls", str(calls), *(["--counters"] if args.counters else [])]
    return Job(
        geometry=geometry,
        device=device_here(),
        points=points,
        calls=calls,
        counters=args.counters,
        chrome_trace=chrome_trace,
        command=shlex.join(command),
    )


def as_json(records: list[ProfileRecord]) -> str:
    """The records, and for several their comparison by workload."""
    compared = []
    for uuid in side_by_side.common_uuids(records) if len(records) > 1 else []:
        found = side_by_side.on_workload(records, uuid)
        first = records[0].solution
        rows = [
            {"stage": row.stage, "us": row.us, "ratio": {name: row.ratio(name, first) for name in row.us}}
            for row in side_by_side.compare(found)
        ]
        compared.append({"uuid": uuid, "T": found[first].T, "rows": rows})
    return json.dumps({"records": [r.model_dump() for r in records], "head_to_head": compared}, indent=2) + "\n"


def show(records: list[ProfileRecord], args: argparse.Namespace) -> None:
    """Print, or write to args.output, in args.format."""
    tables = profiles.tables(records)
    with args.output.open("w") if args.output else nullcontext(sys.stdout) as file:
        if args.format == "json":
            file.write(as_json(records))
        elif args.format == "markdown":
            file.write("\n\n".join(table.markdown(titled=True) for table in tables) + "\n")
        else:
            console = Console(file=file, width=None if file.isatty() else WIDTH)
            for table in tables:
                console.print(table.terminal())


def main(args: argparse.Namespace) -> int:
    progress = Console(stderr=True, width=None if sys.stderr.isatty() else WIDTH, highlight=False, markup=False)
    failures, records = [], []
    names, job = manifest.choose(args.solutions), job_of(args)
    if job.clock == "cpu":
        progress.print("No CUDA device: CPU time of Triton's interpreter, which says nothing about a GPU.")

    def fail(line):
        failures.append(line)
        progress.print(f"FAILED {line}", style="bold red")

    for record in profile_all(names, job, progress.print, fail):
        records.append(record)
        if args.records:
            write_atomically(
                args.records / f"{record.solution}.json", record.model_dump_json(indent=2, exclude_defaults=True) + "\n"
            )
    if records:
        show(records, args)
    doubtful = any(workload.warnings for record in records for workload in record.workloads)
    return 1 if failures or doubtful else 0

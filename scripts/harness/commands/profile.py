"""Where a solution's time goes: its kernels by stage, on chosen workloads; several solutions side by side.

Calls are FIB's: inputs cloned and L2 flushed before each, after warm-up; what the harness runs is kept apart. Without
a CUDA device it is the small geometry through Triton's interpreter, in CPU time, which says nothing about a GPU.
Exit status: 0, 1 when a figure is doubtful or missing (the tables say which), 2 when nothing could be profiled.
"""

import argparse
import json
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from rich.console import Console

from harness.core.atomic_file import write_atomically
from harness.operators import catalogue
from harness.operators.routing_kinds import KINDS
from harness.packing import manifest
from harness.profiling import head_to_head, profile_tables
from harness.profiling.profile_points import DEFAULTS, choose_points
from harness.profiling.profile_record import ProfileRecord
from harness.profiling.profile_run import Job, packed, profile, wall_times
from harness.profiling.profiled_calls import ProfileError, device_here

FORMATS = ("table", "markdown", "json")


def call_count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of calls, want 1 or more")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("solutions", nargs="+", metavar="NAME", help="several are put side by side, with ratios to the first")
    add(
        "--workloads",
        nargs="+",
        metavar="W",
        help=f"T, a uuid, or KIND:T, a made-up routing ({', '.join(KINDS)}); default: {' '.join(DEFAULTS['full'])}",
    )
    add("--calls", type=call_count, help="default: 10 with a GPU, else 2")
    add("--backend", choices=("torch", "nsys"), default="torch", help="default: torch.profiler")
    add("--counters", action="store_true", help="hardware counters of each stage, through ncu")
    add("--chrome-trace", type=Path, metavar="FILE", help="keep torch.profiler's trace; several get a suffix each")
    add("--format", choices=FORMATS, default="table", help="default: table")
    add("--output", type=Path, metavar="FILE", help="write it there instead of printing it")
    add("--records", type=Path, metavar="FOLDER", help="keep a record of each solution there, as in docs/data/profile/")


def job_of(args: argparse.Namespace) -> Job:
    """Raises ValueError for options that do not go together or with this machine."""
    on_gpu = torch.cuda.is_available()
    if not on_gpu and (args.backend == "nsys" or args.counters):
        option = "--counters" if args.counters else "--backend nsys"
        raise ValueError(f"{option} needs a CUDA device; torch sees none")
    if args.chrome_trace and args.backend == "nsys":
        raise ValueError("--chrome-trace: got it with --backend nsys, want --backend torch")
    served = manifest.served(manifest.read_manifest(manifest.choose(args.solutions)[0]))
    geometry = catalogue.geometry_here(served, on_gpu) or catalogue.geometry_here(list(catalogue.GEOMETRIES), on_gpu)
    points = choose_points(args.workloads or DEFAULTS[geometry], geometry)
    calls = args.calls or (10 if on_gpu else 2)

    def chrome_trace(solution, point):
        path = args.chrome_trace
        if path is None or len(args.solutions) * len(points) == 1:
            return path
        return path.with_name(f"{path.stem}-{solution}-{point.uuid.replace(':', '-')}{path.suffix}")

    command = ["python", "moebench profile", *args.solutions, "--workloads", *(p.uuid for p in points)]
    command += ["--calls", str(calls), "--backend", args.backend, *(["--counters"] if args.counters else [])]
    return Job(
        geometry=geometry,
        device=device_here(),
        points=points,
        calls=calls,
        backend=args.backend,
        counters=args.counters,
        chrome_trace=chrome_trace,
        command=shlex.join(command),
    )


def as_json(records: list[ProfileRecord]) -> str:
    """The records, and for several their comparison by workload."""
    compared = []
    for uuid in profile_tables.common_uuids(records) if len(records) > 1 else []:
        profiles = {r.solution: w for r in records for w in r.workloads if w.uuid == uuid}
        first = records[0].solution
        rows = [
            {"stage": row.stage, "us": row.us, "ratio": {name: row.ratio(name, first) for name in row.us}}
            for row in head_to_head.compare(profiles)
        ]
        compared.append({"uuid": uuid, "T": next(iter(profiles.values())).T, "rows": rows})
    return json.dumps({"records": [r.model_dump() for r in records], "head_to_head": compared}, indent=2) + "\n"


def show(records: list[ProfileRecord], args: argparse.Namespace) -> None:
    """Print, or write to args.output, in args.format."""
    grids = profile_tables.grids(records)
    with args.output.open("w") if args.output else nullcontext(sys.stdout) as file:
        if args.format == "json":
            file.write(as_json(records))
        elif args.format == "markdown":
            file.write("\n\n".join(profile_tables.markdown(grid) for grid in grids) + "\n")
        else:
            console = Console(file=file, width=None if file.isatty() else 160)
            for grid in grids:
                console.print(profile_tables.terminal(grid))


def main(args: argparse.Namespace) -> int:
    progress = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
    records, complete = [], True
    try:
        names = manifest.choose(args.solutions)
        job = job_of(args)
        for name in names:
            packed(name, job.geometry)
        if job.clock == "cpu":
            progress.print("No CUDA device: CPU time of Triton's interpreter, which says nothing about a GPU.")

        def say(line):
            progress.print(line, markup=False, highlight=False)

        def fail(line):
            nonlocal complete
            complete = False
            progress.print(f"FAILED {line}", style="bold red", markup=False, highlight=False)

        walls = {}
        for name in names:
            try:
                with progress.status(f"timing {name}"):
                    walls[name] = wall_times(name, job)
            except ProfileError as error:
                fail(str(error))
        for name in walls:
            try:
                with progress.status(f"profiling {name}"):
                    records.append(profile(name, job, walls[name], say, fail))
            except ProfileError as error:
                fail(str(error))
                continue
            if args.records:
                write_atomically(args.records / f"{name}.json", records[-1].model_dump_json(indent=2) + "\n")
        if not records:
            return 2
        show(records, args)
    except (manifest.PackingError, ProfileError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    doubtful = any(workload.warnings for record in records for workload in record.workloads)
    return 0 if complete and not doubtful else 1

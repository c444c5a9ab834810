"""Time the steps of the MXFP8 linear layer - quantise, block-scaled product, both in one call - beside torch's.

On a GPU without SM100's block-scaled tensor cores the product takes the SM90 route, and that is said. Times are the
device's, with a cold L2.
"""

import argparse
import datetime
import shlex
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch.profiler import ProfilerActivity, profile

from definitions.mxfp8_linear import GEOMETRIES
from harness.core.atomic_file import write_atomically
from harness.core.environment import environment
from harness.packing import eligibility, manifest
from harness.profiling import mxfp8_profile, mxfp8_tables
from harness.profiling.mxfp8_profile import OTHERS, OURS, Size
from harness.profiling.mxfp8_record import Mxfp8Record
from harness.profiling.profiled_calls import ProfileError

N, K = GEOMETRIES["mxfp8"]["n"], GEOMETRIES["mxfp8"]["k"]
CASES = {"small": (1, 16, 64), "medium": (512, 2048), "large": (8192,)}
CASES["all"] = tuple(m for rows in CASES.values() for m in rows)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MULTIPLE = 128  # of n and k, for triton_mxfp8


def size(text: str) -> Size:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"got {text!r}, want M,N,K, three whole numbers from 1")
    found = Size(*map(int, parts))
    for name, value in (("N", found.n), ("K", found.k)):
        if value % MULTIPLE:
            raise argparse.ArgumentTypeError(f"{name} is {value}, want a multiple of {MULTIPLE}")
    return found


def count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, want a whole number from 1")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    listed = "; ".join(f"{name}: M = {', '.join(map(str, rows))}" for name, rows in CASES.items() if name != "all")
    add("case", nargs="?", choices=list(CASES), help=f"at N={N}, K={K}: {listed}; default: small, unless --custom")
    add("--custom", type=size, action="append", default=[], metavar="M,N,K", help="a size of your own; may be repeated")
    add("--dtype", choices=list(DTYPES), default="bf16", help="of the output; default: bf16")
    add("--iterations", type=count, default=50, help="timed calls of each; default: 50")
    add(
        "--use-profiler",
        type=Path,
        metavar="FILE",
        nargs="?",
        const=Path("mxfp8_trace.json"),
        help="write a Chrome trace of the whole run there; default: mxfp8_trace.json",
    )
    add("--output", type=Path, metavar="FILE", help="write the record there, as JSON")
    add("--interpreter", action="store_true", help="without a CUDA device: CPU time of Triton's interpreter")


def sizes(args: argparse.Namespace) -> list[Size]:
    named = args.case or (None if args.custom else "small")
    return [Size(m, N, K) for m in CASES.get(named, ())] + args.custom


def repeatable(args: argparse.Namespace) -> list[str]:
    """What decides the figures, without where this run's files went."""
    custom = [word for size in args.custom for word in ("--custom", f"{size.m},{size.n},{size.k}")]
    options = ["--dtype", args.dtype, "--iterations", str(args.iterations)]
    return [*([args.case] if args.case else []), *custom, *options]


def run(args: argparse.Namespace, command: str, console: Console) -> Mxfp8Record:
    """Raises ProfileError, PackingError."""
    on_gpu = torch.cuda.is_available()
    chosen = sizes(args)
    cases = []
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(chosen))

        def say(line):
            bar.update(task, description=line)

        for wanted in chosen:
            cases.append(mxfp8_profile.profile_case(wanted, DTYPES[args.dtype], args.iterations, say))
            bar.advance(task)
    hardware, libs = environment("cuda:0" if on_gpu else "cpu")
    return Mxfp8Record(
        hardware=hardware,
        clock="device" if on_gpu else "cpu",
        dtype=args.dtype,
        iterations=args.iterations,
        libs=libs,
        solutions_sha1={name: mxfp8_profile.packed(name).hash() for name in (OURS, *OTHERS)},
        command=command,
        timestamp=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        cases=cases,
    )


def main(args: argparse.Namespace) -> int:
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
    hardware = eligibility.here()
    if hardware == "cpu" and not args.interpreter:
        print("no CUDA device: torch sees none; --interpreter times Triton's interpreter instead", file=sys.stderr)
        return 2
    if hardware == "cpu":
        console.print("No CUDA device: CPU time of Triton's interpreter, which says nothing about a GPU.")
    if hardware != "sm_100":
        console.print(f"{hardware} has no block-scaled tensor cores: the product takes the SM90 route.")
    command = shlex.join(["python", "moebench profile", *repeatable(args)])
    try:
        if args.use_profiler:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if hardware != "cpu" else [])]
            with profile(activities=activities) as profiler:
                record = run(args, command, console)
            args.use_profiler.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(args.use_profiler))
            console.print(f"Chrome trace in {args.use_profiler}; the profiler slows the host, not the device")
        else:
            record = run(args, command, console)
        if args.output:
            args.output.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(args.output, record.model_dump_json(indent=2) + "\n")
    except (ProfileError, manifest.PackingError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    Console(width=None if sys.stdout.isatty() else 160).print(mxfp8_tables.terminal(record))
    return 0

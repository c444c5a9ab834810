"""Find the tiles of triton_fused_v2's grouped products on this GPU, on routing as it really happens.

Tiles are first compiled without a GPU; those that do not fit or spill are left out (--only-prune stops there and needs
no GPU). The others are checked against the present tiles' answer and timed as they would run: with TMA in gemm2 and
gemm1 storing in expert order for it, and without both. The best pair of one padding is kept where it is faster than the
present one, in solutions/triton_fused_v2/tiles_<GPU>_<geometry>.py. A run that was stopped goes on from its record.
Exit status: 0, 1 when a candidate was wrong or did not run, 2 when nothing could be tuned.
"""

import argparse
import sys
from pathlib import Path

import torch
import triton
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from definitions.moe_fp8_block_scale import GEOMETRIES, definition, definition_name
from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.packing import manifest
from harness.profiling.profile_tables import terminal
from harness.tuning import tune_bench, tune_prune, tune_routing, tune_search, tune_tables
from harness.tuning.tune_record import Head, Record, kernels_sha1
from harness.tuning.tune_space import TileSize, parse_configuration

TOKENS = [1, 7, 57, 901, 8192, 14107]
LAYERS = 8
WITHOUT_GPU = "sm_90"  # what is pruned for where no GPU is


def count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, want 1 or more")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tokens", nargs="+", type=count, default=TOKENS, metavar="T", help=f"default: {' '.join(map(str, TOKENS))}")
    add("--routing", type=Path, metavar="FOLDER", help="expert ids recorded in an engine; default: the workloads'")
    add("--layers", type=count, default=LAYERS, metavar="N", help=f"routings for each T, at most; default: {LAYERS}")
    add("--configuration", metavar="C", help="time this one alone, m64-n128-g16-p2-w4-s3 for instance; keeps nothing")
    add("--geometry", choices=list(GEOMETRIES), default="full", help="default: full")
    add("--record", type=Path, metavar="FILE", help="default: docs/data/tune/<GPU>_<geometry>.jsonl")
    add("--only-prune", action="store_true", help="compile, say what is left out and why, and stop")
    add("--all", action="store_true", help="print every configuration, not the best alone")


def head_of(main, geometry: str, routing: str) -> Head:
    """What the measurements of this run have in common, on the current device."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    architecture, gpu, _ = main.gpu_of(device) if device else (WITHOUT_GPU, f"any {WITHOUT_GPU}", 0)
    libs = {"torch": torch.__version__, "triton": triton.__version__}
    sizes = tune_bench.sizes_of(geometry)
    return Head(gpu=gpu, architecture=architecture, **sizes, routing=routing, libs=libs, kernels_sha1=kernels_sha1())


def run(args: argparse.Namespace, console: Console) -> Record:
    """All that was asked for. Raises ValueError and PackingError, one line, for what cannot be done."""
    tile: TileSize | None = parse_configuration(args.configuration) if args.configuration else None
    if not torch.cuda.is_available() and not args.only_prune:
        raise ValueError("tuning takes times and needs a CUDA device; torch sees none (--only-prune needs none)")
    name = definition_name(args.geometry)
    if args.routing:
        batches, routing = tune_routing.of_folder(args.routing), f"recorded, {args.routing.resolve().name}"
    else:
        batches, routing = tune_routing.of_workloads(args.geometry, name), "the workloads"
    tokens = sorted(set(args.tokens))
    layers = {count: tune_routing.layers_of(batches, count, args.layers) for count in tokens}
    main = tune_bench.built(args.geometry)
    head = head_of(main, args.geometry, f"{routing}, up to {args.layers} layers and ranks")
    table = tune_bench.table_name(main, head)
    path = args.record or paths.TUNING / f"{table.removeprefix('tiles_')}.jsonl"
    present = {count: tune_bench.present(main, head, count) for count in tokens}
    record = Record(None if args.only_prune else path, head)

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        tasks = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total, visible=done < total)
            if done == total:
                (ended,) = (task for task in bar.tasks if task.id == tasks[what])
                console.print(f"{what}: {total} in {ended.elapsed:.0f} s")
                del tasks[what]  # the next of that name is another

        def prune(variants):
            package, sizes = Path(main.__file__).parent, tune_bench.sizes_of(args.geometry)
            told = tune_prune.left_out(
                variants, package, head.architecture, sizes, lambda *far: advance("compiling", *far)
            )
            reasons = [reason for reason in told.values() if reason]
            console.print(f"{len(told)} candidates, {len(reasons)} left out: {tune_prune.counted(reasons)}")
            return told

        device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
        search = tune_search.Search(record, prune, tune_bench.event_times, advance)
        if args.only_prune:
            tune_search.prune(search, [v for t in tokens for v in tune_search.to_try(layers[t], present[t], tile)])
            for variant, reason in record.left_out.items():
                console.print(f"{variant}  {reason}", markup=False, highlight=False, soft_wrap=True)
            return record
        operands = tune_bench.random_operands(definition(args.geometry), tokens[-1], device)
        benches = [tune_bench.Bench(main, operands, layers[t], present[t]) for t in tokens]
        with torch.no_grad():
            if tile:
                tune_search.try_one(search, benches, tile)
            else:
                tune_search.tune(search, benches)
    if not tile:
        source = paths.SOLUTIONS / tune_bench.SOLUTION / f"{table}.py"
        write_atomically(source, tune_tables.table_source(record))
        console.print(f"tiles written to {source.relative_to(paths.ROOT)}")
    return record


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        record = run(args, console)
    except (manifest.PackingError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for num_tokens in tune_tables.tuned_tokens(record):
        if num_tokens in args.tokens:
            console.print(terminal(tune_tables.times_grid(record, num_tokens, None if args.all else tune_tables.SHOWN)))
    if record.compared:
        console.print(terminal(tune_tables.compared_grid(record)))
        console.print(terminal(tune_tables.gain_grid(record)))
    return 1 if any(line.error for line in record.timed.values()) else 0

"""Find the tiles of triton_fused_v2's grouped GEMMs on this GPU, on the routing of real batches.

Tiles are first compiled without a GPU; those that do not fit or spill are left out (--only-prune stops there and needs
no GPU). The others are checked against the present tiles' result and timed as they would run: with TMA in gemm2 and
gemm1 storing in expert order for it, and without both. The best pair of one padding is kept where it is faster than the
present one, in solutions/triton_fused_v2/tiles_<GPU>_<geometry>.py. A run that was stopped continues from its record.
Exit status: 0, 1 when a candidate was wrong, did not run, or nothing could be tuned, 2 for bad arguments.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from rich.console import Console

from definitions.moe_fp8_block_scale import GEOMETRIES, definition
from harness.core import paths, provenance
from harness.core.arguments import check_cache, count, output_file, writable
from harness.core.atomic_file import write_atomically
from harness.core.errors import CannotRun
from harness.evaluation.calling import device_here
from harness.operators.arguments import add_definition
from harness.report import tuning
from harness.report.progress import progress
from harness.results import staleness
from harness.tuning import bench, prune, routing
from harness.tuning.record import STAGES, Head, Record, table_source
from harness.tuning.search import Search, to_try
from harness.tuning.space import Variant, parse_configuration

TOKENS = [1, 7, 57, 901, 8192, 14107]
LAYERS = 8
WITHOUT_GPU = "sm_90"  # the architecture that is compiled for where there is no GPU


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    tokens = f"default: of {' '.join(map(str, TOKENS))} those that a batch has"
    add("--tokens", nargs="+", type=count(), metavar="T", help=tokens)
    add("--routing", type=Path, metavar="FOLDER", help="expert ids recorded in an engine; default: the workloads'")
    add("--layers", type=count(), default=LAYERS, metavar="N", help=f"routings for each T, at most; default: {LAYERS}")
    alone = "time this one alone, m64-n128-g16-p2-w4-s3 for instance; keeps nothing"
    add("--configuration", type=parse_configuration, metavar="C", help=alone)
    add_definition(parser, dest="geometry", default="full", help="default: full")
    add("--record", type=output_file, metavar="FILE", help="default: docs/data/tune/<GPU>_<geometry>.jsonl")
    add("--only-prune", action="store_true", help="compile, say what is left out and why, and stop")
    add("--all", action="store_true", help="print every configuration, not the best alone")


def head_of(solution: ModuleType, args: argparse.Namespace) -> Head:
    """What the measurements of this run have in common, on the current device."""
    device, architecture, gpu = device_here(), WITHOUT_GPU, f"any {WITHOUT_GPU}"
    if torch.cuda.is_available():
        architecture, gpu, _ = solution.gpu_of(torch.device(device))
    origin = provenance.here(device, command=args.command_line, source_sha1=staleness.stages_sha1(STAGES))
    source = f"recorded, {args.routing.resolve().name}" if args.routing else "the workloads"
    return Head(
        architecture=architecture,
        local_experts=GEOMETRIES[args.geometry]["num_local_experts"],
        hidden=GEOMETRIES[args.geometry]["hidden_size"],
        intermediate=GEOMETRIES[args.geometry]["intermediate_size"],
        routing=f"{source}, up to {args.layers} layers and ranks",
        provenance=origin.model_copy(update={"hardware": gpu}),
    )


def tracked(items: list, what: str, console: Console) -> Iterator:
    """The items, with a bar while they last and a line in the end, since a log has no bar."""
    began = time.perf_counter()
    with progress(console, len(items), ticking=False) as shown:
        for done, item in enumerate(items):
            shown(done, what)
            yield item
    if items:
        console.print(f"{what}: {len(items)} in {time.perf_counter() - began:.0f} s")


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 180)
    if not torch.cuda.is_available() and not args.only_prune:
        raise CannotRun("tuning takes times and needs a CUDA device; torch sees none (--only-prune needs none)")
    batches = routing.of_folder(args.routing, args.geometry) if args.routing else routing.of_workloads(args.geometry)
    tokens = sorted(set(args.tokens or (t for t in TOKENS if t <= routing.longest(batches))))
    layers = {t: routing.layers_of(batches, t, args.geometry, args.layers) for t in tokens}
    check_cache()
    solution = bench.built(args.geometry)
    head = head_of(solution, args)
    table = bench.table_name(solution, head)
    path = args.record or paths.TUNING / f"{table.removeprefix('tiles_')}.jsonl"
    record = Record(None if args.only_prune else writable(path), head)
    present = {t: bench.present(solution, head, t) for t in tokens}

    def left_out(variants: list[Variant]) -> dict[Variant, str | None]:
        shown = partial(tracked, what="compiling", console=console)
        found = prune.left_out(variants, Path(solution.__file__).parent, head, shown)
        reasons = [reason for reason in found.values() if reason]
        console.print(f"{len(found)} candidates, {len(reasons)} left out: {prune.counts_by_kind(reasons)}")
        return found

    search = Search(record, left_out, partial(tracked, console=console))
    wanted = {t: to_try(layers[t], present[t], args.configuration) for t in tokens}
    if args.only_prune:
        search.add_left_out(variant for found in wanted.values() for variant in found)
        for variant, reason in record.left_out.items():
            console.print(f"{variant}  {reason}", markup=False, highlight=False, soft_wrap=True)
        return 0
    operands = bench.random_operands(definition(args.geometry), tokens[-1], device_here())
    benches = [bench.Bench(solution, operands, layers[t], present[t]) for t in tokens]
    try:
        with torch.no_grad():
            if args.configuration:
                search.time_all({at: wanted[at.num_tokens] for at in benches}, str(args.configuration))
            else:
                search.tune(benches)
                written = paths.SOLUTIONS / bench.SOLUTION / f"{table}.py"
                write_atomically(written, table_source(record))
                console.print(f"tiles written to {written.relative_to(paths.SOLUTIONS.parent)}", soft_wrap=True)
    finally:  # after Ctrl-C, too
        for found in tuning.tables(record, tokens, None if args.all else tuning.SHOWN):
            console.print(found.terminal())
    return 1 if any(line.error for line in record.timed.values()) else 0

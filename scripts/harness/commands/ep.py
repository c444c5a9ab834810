"""The whole layer on several ranks, each with its share of the experts: checked against the reference, and timed.

Two ways. gather: all-gather of every token to every rank, reduce-scatter of the parts, as inference engines do by
default. exchange: all-to-all of the rows that a rank's experts were chosen for, and back. With CUDA devices a rank is a
GPU, over NCCL; without, a process, over gloo on the small layer, which is checked and not timed. Ranks are started
here, or by `torchrun --no-python moebench ep`.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from harness.core import paths, provenance
from harness.core.arguments import count, output_file, writable
from harness.core.errors import CannotRun, UserError
from harness.core.names import counted
from harness.core.schema import add_line
from harness.judging.tolerances import TOLERANCES
from harness.expert_parallel import ranks as processes
from harness.expert_parallel import record
from harness.expert_parallel.check import DTYPES, batches, check
from harness.expert_parallel.forward import WAYS, rank_of
from harness.expert_parallel.layer import Layer, expected, tokens_of
from harness.expert_parallel.local_part import REFERENCE, geometry_of
from harness.expert_parallel.measure import CALLS, WARMUP, measure
from harness.operators.arguments import add_definition
from harness.operators.catalogue import FULL
from harness.packing import manifest, pack
from harness.served import nvml

TOKENS = (1, 8, 64, 512, 4096)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--solution", default=REFERENCE, metavar="NAME", help=f"default: {REFERENCE}, the definition's own")
    add_definition(parser, default=None, help="a model's; default: full with a GPU, else small")
    add("--ranks", type=count(), help="default: one a GPU, 2 without any; under torchrun its number")
    add("--sum-in", choices=list(DTYPES), default="bf16", help="what parts are sent back in; default: bf16")
    add("--chunks", nargs="+", type=count(), default=[2, 4], metavar="N", help="also cut a call into; default: 2 and 4")
    add("--graph", action=argparse.BooleanOptionalAction, default=True, help="also time CUDA graphs, where possible")
    add("--tokens", nargs="+", type=count(), default=list(TOKENS), metavar="T", help="a rank, to be timed with")
    add("--check-tokens", type=count(), default=None, metavar="T", help="a rank; default: 64 with a GPU, else 2")
    add("--tolerance", choices=list(TOLERANCES), default="relaxed", help="default: relaxed")
    add("--timeout", type=count(), default=120, help="seconds that a rank waits for another; default: 120")
    add("--output", type=output_file, metavar="FILE", help="default: below docs/data/expert_parallel/")


def main(args: argparse.Namespace) -> int:
    on_gpu = torch.cuda.is_available()
    geometry = args.definition or ("full" if on_gpu else "small")
    if geometry in FULL and not on_gpu:
        raise CannotRun(f"{geometry} needs CUDA devices; without any: --definition small")
    if args.solution != REFERENCE:
        manifest.choose([args.solution])
    ranks = args.ranks or (torch.cuda.device_count() if on_gpu else 2)
    if on_gpu and not processes.started_elsewhere() and ranks > torch.cuda.device_count():
        raise CannotRun(f"--ranks: got {ranks}, this machine has {torch.cuda.device_count()} GPUs")
    if not processes.started_elsewhere():
        Layer(geometry, ranks)  # refuses, before anything is started, what cannot be divided
    args.definition, args.moebench = geometry, None  # a function cannot be sent to a process
    return processes.run_ranks(ranks, args.timeout, work, args)


def work(rank: int, ranks: int, device: str, args: argparse.Namespace) -> int:
    """What every rank does; the first one prints."""
    layer, tolerance = Layer(args.definition, ranks), TOLERANCES[args.tolerance]
    each = args.check_tokens or (64 if device != "cpu" else 2)
    say = partial(print, flush=True) if rank == 0 else lambda text: None
    say(f"{args.solution}: {layer.of['num_experts']} experts on {ranks} ranks over {dist.get_backend()}, {tolerance}")
    todo = batches(ranks, each)
    given = [tokens_of(layer, counts, rank, device, to_rank) for counts, to_rank in todo.values()]
    drawn = list(zip(todo, (counts for counts, _ in todo.values()), given, expected(layer, given), strict=True))
    path = writable(args.output or record_file(args, layer, device)) if rank == 0 and device != "cpu" else None
    passed, checked, points, cut = True, 0, 0, sorted({1, *args.chunks})
    for way in WAYS:
        try:
            mine = rank_of(way, args.solution, layer, rank, device)
        except UserError as error:
            say(f"{way}: SKIPPED: {error}")
            continue
        for chunks in cut:
            for name, counts, tokens, right in drawn:
                matched, same = check(mine, tokens, right, counts, tolerance, args.sum_in, chunks)
                good = same and matched >= tolerance.ratio
                passed, checked = passed and good, checked + 1
                verdict = f"{'PASSED' if good else 'FAILED'}  matched {matched:.4f}"
                verdict += "" if same else ", another answer the second time"
                say(f"{way}  {name}, {counted(chunks, 'chunk')}  {verdict}")
        for tokens in args.tokens if device != "cpu" else ():
            point = measure(mine, tokens, args.sum_in, device, cut, args.graph)
            if not points:
                add_line(path, head(args, layer, device, WAYS[way].BEHIND_ROUTER), first=True)
            add_line(path, point, first=False)
            points += 1
            say(line(point))
    if points:
        say(f"{counted(points, 'point')} in {path}")
    return 0 if passed and checked else 1


def line(point: record.Point) -> str:
    calls = ", ".join(f"{counted(pieces, 'chunk')} {ms:.3f}" for pieces, ms in point.call_ms.items())
    sent = f"sends {point.there_bytes / 1e6:.2f} and {point.back_bytes / 1e6:.2f} MB"
    apart = f"there {point.there_ms:.3f}, products {point.products_ms:.3f}, back {point.back_ms:.3f}"
    graph = f"; as a graph {point.graph_ms:.3f}" if point.graph_ms else ""
    return f"{point.way}  T={point.tokens} a rank  {sent}  ms: {apart}; a call in {calls}{graph}"


def head(args: argparse.Namespace, layer: Layer, device: str, behind_router: bool) -> record.Head:
    """behind_router: the form of the solution that the first point is of."""
    protocol = f"warmup={WARMUP} calls={CALLS}, medians, of the slowest rank; L2 warm"
    known = {"tolerance": str(TOLERANCES[args.tolerance]), "protocol": protocol, "command": args.command_line}
    if args.solution != REFERENCE:
        known["source_sha1"] = pack.pack(args.solution)[geometry_of(args.solution, layer, behind_router)].hash()
    made = provenance.here(device, **known)
    link = nvml.nvlink_gb_s(nvml.handle(device))
    return record.Head(
        solution=args.solution, geometry=layer.geometry, ranks=layer.ranks, link_gb_s=link, provenance=made
    )


def record_file(args: argparse.Namespace, layer: Layer, device: str) -> Path:
    gpu = torch.cuda.get_device_name(device).lower().replace(" ", "_")
    name = f"{gpu}_x{layer.ranks}_{layer.geometry}_{args.solution}" + ("" if args.sum_in == "bf16" else "_fp32")
    return paths.EXPERT_PARALLEL / f"{name}.jsonl"

"""Time a forward pass: all MoE layers of a model, each with weights and routing of its own, as one CUDA graph.

As many layers as the model has, or as fit into free memory. Solutions are timed in turns, as a graph and eagerly, and
the last layer's answer is checked. Small T are decode steps, from 1024 on prefill chunks. Without a GPU it is a small
definition with two layers, eagerly through Triton's interpreter, which shows what is correct, not what is fast.
"""

import argparse
import sys

import torch
from flashinfer_bench import Solution
from rich.console import Console

from harness.core import provenance
from harness.core.arguments import Names, count, output_file
from harness.core.errors import UserError
from harness.core.schema import add_line
from harness.judging import memory
from harness.judging.calling import device_here
from harness.judging.selection import choose_geometry, select
from harness.judging.tolerances import TOLERANCES
from harness.operators.arguments import add_definition
from harness.operators.catalogue import FP8_MOE, ROUTED, definition_name
from harness.packing.build_ahead import build_timed
from harness.report.blocks import served as report
from harness.report.progress import progress
from harness.results.model_names import layer_of
from harness.served import nvml, passes, resident
from harness.served.record import Head, Point, Record

TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 2048, 4096, 8192, 16384]
ON_CPU = {"tokens": [1, 4], "layers": 2}
TOLERANCE = TOLERANCES["relaxed"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--solutions", nargs="+", action=Names, default=[], metavar="NAME", help="default: every solution")
    among = (*FP8_MOE, *ROUTED)
    add_definition(parser, among=among, default=None, help="an FP8 MoE layer; default: full with a GPU, else small")
    add(
        "--tokens", nargs="+", type=count(), metavar="T", help="default: 14 counts from 1 to 16384; 1 and 4 without GPU"
    )
    add("--layers", type=count(), metavar="N", help="at most so many; default: those of the model, 2 without a GPU")
    add("--turns", type=count(), default=5, metavar="N", help="of each solution at each T; default: 5")
    energy = "read joules from NVML, a second for each figure; default: yes"
    add("--energy", action=argparse.BooleanOptionalAction, default=True, help=energy)
    add("--output", type=output_file, metavar="FILE", help="record it; docs/served.md shows docs/data/served/*.jsonl")


def head_of(geometry: str, layers: int, tokens: list[int], solutions: dict[str, Solution], device: str, args) -> Head:
    protocol = f"best of {args.turns} turns, median of 3 to 20 replays"
    known = {"tolerance": str(TOLERANCE), "protocol": protocol, "command": args.command_line}
    return Head(
        definition=definition_name(geometry),
        layers=layers,
        of_model=model.count if (model := layer_of(geometry)) else None,
        tokens=tokens,
        sources={name: solution.hash() for name, solution in solutions.items()},
        gpu=nvml.limits(nvml.handle(device)) if device != "cpu" else {},
        commit=provenance.commit(),
        provenance=provenance.here(device, **known),
    )


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    on_gpu, device = torch.cuda.is_available(), device_here()
    geometry = choose_geometry(args.definition, on_gpu, args.solutions)
    if geometry not in (*FP8_MOE, *ROUTED):
        raise UserError(f"--definition: got {geometry}, want an FP8 MoE layer")
    tokens = sorted(set(args.tokens or (TOKENS if on_gpu else ON_CPU["tokens"])))
    solutions, skipped = select(args.solutions, geometry, console.print)
    for name, packed in solutions.items():
        seconds, fault = build_timed(packed)
        console.print(f"{name}: {f'not built: {fault.splitlines()[0]}' if fault else 'built'} in {seconds:.1f} s")
    model = layer_of(geometry) if on_gpu else None
    wanted = layers = args.layers or (model.count if model else ON_CPU["layers"])
    if on_gpu:
        layers = resident.fitting(wanted, geometry, tokens[-1], len(solutions), memory.free())
    for line in [*skipped, *([f"{layers} of {wanted} layers fit into free memory"] if layers < wanted else [])]:
        console.print(line)
    head = head_of(geometry, layers, tokens, solutions, device, args)
    add_line(args.output, head, first=True)
    points = run(args, geometry, head, solutions, device, console)
    return 1 if any(point.error for point in points) else 0


def run(
    args: argparse.Namespace,
    geometry: str,
    head: Head,
    solutions: dict[str, Solution],
    device: str,
    console: Console,
) -> list[Point]:
    """Every point, recorded and printed as it is measured; a table in the end, after Ctrl-C too."""
    record = Record(head)
    try:
        # the bar is drawn between points only, or it would disturb their times
        with progress(console, len(head.tokens), ticking=False) as started:
            started(0, f"weights of {head.layers} layers")
            model = resident.make(geometry, head.layers, head.tokens[-1], device)
            conditions = head.tokens, args.turns, TOLERANCE, device, args.energy
            for points in passes.measure(solutions, model, *conditions, started):
                for point in points:
                    add_line(args.output, point, first=False)
                    record.points.append(point)
                    said = point.error or f"{point.ms:.4f} ms" + (f", {why}" if (why := point.not_captured) else "")
                    console.print(
                        f"[{len(record.tokens)}/{len(head.tokens)}] T={point.tokens}  {point.solution}  {said}"
                    )
    finally:
        if record.points:
            console.print(report.passes(record).terminal())
    return record.points

"""Time a forward pass: all MoE layers of a model, each with weights and routing of its own, as one
CUDA graph.

As many layers as the model has, or as fit into free memory. Solutions are timed in rounds, eagerly
where there is no graph, and the last layer's answer is checked. Small T are decode steps, from 1024
on prefill chunks. Without a GPU it is a small definition with two layers, eagerly through Triton's
interpreter, which shows what is correct, not what is fast.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from flashinfer_bench import Solution

from moebench.core import provenance
from moebench.core.arguments import count, output_file
from moebench.core.errors import CannotRun, UserError
from moebench.core.schema import write_record
from moebench.judging.calling import device_here
from moebench.judging.selection import choose_layer, select
from moebench.judging.tolerances import TOLERANCES
from moebench.models.layer import layer_of
from moebench.operators.catalogue import definition_name, form, layer_key_named
from moebench.packing.fingerprint import fingerprint
from moebench.reports.served import table
from moebench.reports.table import console
from moebench.served import resident, rounds
from moebench.served.record import Head, Point

TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 2048, 4096, 8192, 16384]
CPU_TOKENS = [1, 4]
CPU_LAYERS = 2
TOLERANCE = TOLERANCES["relaxed"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--solutions", nargs="+", default=[], metavar="NAME", help="default: every solution")

    definition_help = "an FP8 MoE layer; default: full with a GPU, else small"
    add("--definition", type=layer_key_named, metavar="KEY", help=definition_help)

    tokens_help = "default: 14 counts from 1 to 16384; 1 and 4 without GPU"
    add("--tokens", nargs="+", type=count(), metavar="T", help=tokens_help)

    layers_help = "at most so many; default: those of the model, 2 without a GPU"
    add("--layers", type=count(), metavar="N", help=layers_help)

    rounds_help = "of each solution at each T; default: 5"
    add(
        "--rounds", "--turns", dest="rounds", type=count(), default=5, metavar="N", help=rounds_help
    )

    output_help = "record it; docs/served.md shows records/served/*.jsonl"
    add("--output", type=output_file, metavar="FILE", help=output_help)


def main(args: argparse.Namespace) -> int:
    screen = console()
    on_gpu = torch.cuda.is_available()
    layer_key = choose_layer(args.definition, on_gpu, args.solutions)
    if not form(layer_key):
        raise UserError(f"--definition: got {layer_key}, want an FP8 MoE layer")

    tokens = sorted(set(args.tokens or (TOKENS if on_gpu else CPU_TOKENS)))
    solutions = select(args.solutions, layer_key, screen.print)
    wanted_layers = args.layers or default_layers(layer_key, on_gpu)
    layers = wanted_layers
    if on_gpu:
        free, _ = torch.cuda.mem_get_info()
        layers = resident.fitting(wanted_layers, layer_key, tokens[-1], len(solutions), free)
    if layers < wanted_layers:
        screen.print(f"{layers} of {wanted_layers} layers fit into free memory")

    head = head_of(layer_key, layers, tokens, solutions, args)
    points: list[Point] = []
    try:
        for new_points in measured(head, layer_key, solutions, args.rounds):
            points += new_points
            keep(args.output, head, points)
            done = tokens.index(new_points[0].tokens) + 1
            for point in new_points:
                screen.print(f"[{done}/{len(tokens)}] {progress_line(point)}")
    finally:  # after Ctrl-C, too
        if points:
            screen.print(table(head, points).terminal())
    return 1 if any(point.error for point in points) else 0


def measured(
    head: Head, layer_key: str, solutions: dict[str, Solution], round_count: int
) -> Iterator[list[Point]]:
    """Yield the points of all solutions at each token count.

    Raises CannotRun where others take the memory meanwhile; a solution's own want of it is its
    result.
    """
    device = device_here()
    try:
        model = resident.make(layer_key, head.layers, head.tokens[-1], device)
        request = rounds.Request(model, head.tokens, round_count, TOLERANCE, device)
        yield from rounds.measure(solutions, request)
    except torch.OutOfMemoryError as error:
        raise CannotRun(
            f"--layers: {head.layers} do not fit into GPU memory, want fewer"
        ) from error


def default_layers(layer_key: str, on_gpu: bool) -> int:
    """Return how many such layers the model has; without a GPU, or without a model, two."""
    model = layer_of(layer_key)
    return model.count if on_gpu and model else CPU_LAYERS


def head_of(
    layer_key: str,
    layers: int,
    tokens: list[int],
    solutions: dict[str, Solution],
    args: argparse.Namespace,
) -> Head:
    """Return the first line of a record: what is run, and where."""
    model = layer_of(layer_key)
    measured_by = provenance.here(
        device_here(),
        tolerance=str(TOLERANCE),
        protocol=f"best of {args.rounds} rounds, median of 3 to 20 replays",
        command=args.command_line,
    )
    return Head(
        definition=definition_name(layer_key),
        layers=layers,
        of_model=model.count if model else None,
        tokens=tokens,
        sources={name: packed.hash() for name, packed in solutions.items()},
        fingerprints={name: fingerprint(packed) for name, packed in solutions.items()},
        provenance=measured_by,
    )


def keep(file: Path | None, head: Head, points: list[Point]) -> None:
    """Write the record, whole each time: an earlier one stays until there is a point."""
    if file:
        write_record(file, [head, *points])


def progress_line(point: Point) -> str:
    """Return 'T=4  NAME  1.0300 ms', with why there is no graph, or the error."""
    result = point.error
    if result is None:
        result = f"{point.ms:.4f} ms"
        if point.not_captured:
            result += f", {point.not_captured}"
    return f"T={point.tokens}  {point.solution}  {result}"

"""Time a forward pass: all MoE layers of a model, each with weights and routing of its own, as one
CUDA graph.

As many layers as the model has, or as fit into free memory. Solutions are timed in rounds, eagerly
where there is no graph, and the last layer's answer is checked. Small T are decode steps, from 1024
on prefill chunks. Without a GPU it is a small definition with two layers, eagerly through Triton's
interpreter, which shows what is correct, not what is fast.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from moebench.core import provenance
from moebench.core.arguments import count, output_file
from moebench.core.errors import CannotRun, UserError
from moebench.core.schema import write_record
from moebench.judging.building import Solutions
from moebench.judging.device import device_here
from moebench.judging.selection import choose_layer, select
from moebench.judging.tolerances import TOLERANCES
from moebench.models.layer import layer_of
from moebench.operators.catalogue import definition_name, form, layer_key_named
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.packing.fingerprint import fingerprint
from moebench.reports.predicted import predicted_notes
from moebench.reports.served import table
from moebench.reports.table import Table
from moebench.reports.terminal import InTerminal, console
from moebench.served import resident, rounds
from moebench.served.record import Head, Point, ServedRecord

TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 2048, 4096, 8192, 16384]
CPU_TOKENS = [1, 4]
CPU_LAYERS = 2  # also on a GPU, for a definition that is of no model
TOLERANCE = TOLERANCES["relaxed"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--solutions",
        nargs="+",
        default=[],
        metavar="NAME",
        help="default: every solution",
    )
    add(
        "--definition",
        type=layer_key_named,
        metavar="KEY",
        help="an FP8 MoE layer; default: full with a GPU, else small",
    )
    add(
        "--tokens",
        nargs="+",
        type=count(),
        metavar="T",
        help="default: 14 counts from 1 to 16384; 1 and 4 without GPU",
    )
    add(
        "--layers",
        type=count(),
        metavar="N",
        help="at most so many; default: those of the model, 2 without a GPU",
    )
    add(
        "--rounds",
        "--turns",
        dest="rounds",
        type=count(),
        default=5,
        metavar="N",
        help="of each solution at each T; default: 5",
    )
    add(
        "--output",
        type=output_file,
        metavar="FILE",
        help="record it; docs/served.md shows records/served/*.jsonl",
    )


def main(args: argparse.Namespace) -> int:
    on_gpu = torch.cuda.is_available()
    layer_key = choose_layer(args.definition, on_gpu, args.solutions)
    if not form(layer_key):
        raise UserError(f"--definition: got {layer_key}, want an FP8 MoE layer")

    tokens = sorted(set(args.tokens or (TOKENS if on_gpu else CPU_TOKENS)))
    solutions = select(args.solutions, layer_key, console().print)
    measured_by = provenance.measured_here(
        device_here(),
        tolerance=str(TOLERANCE),
        protocol=f"{args.rounds} rounds, each the median of 3 to 20 replays",
        command=args.command_line,
    )
    head = Head(
        definition=definition_name(layer_key),
        layers=resident_layers(args.layers, layer_key, tokens[-1], len(solutions)),
        of_model=layers_of_model(layer_key),
        tokens=tokens,
        sources={name: packed.hash() for name, packed in solutions.items()},
        fingerprints={name: fingerprint(packed) for name, packed in solutions.items()},
        ceilings=CEILINGS[MEASURED_ON],
        provenance=measured_by,
    )
    record = ServedRecord(head, [])
    measure(record, solutions, layer_key, args.rounds, args.output)
    has_failed = any(point.error for point in record.points)
    return 1 if has_failed else 0


def layers_of_model(layer_key: str) -> int | None:
    """Return how many layers of this key its model has, None for a definition of no model."""
    model = layer_of(layer_key)
    return model.count if model else None


def resident_layers(
    asked_for: int | None, layer_key: str, num_tokens: int, solution_count: int
) -> int:
    """Return how many layers are measured: as many as asked for, or as the model has, but no more
    than fit into GPU memory; where not all fit, that is printed.

    num_tokens: the greatest token count.
    """
    if not torch.cuda.is_available():
        return asked_for or CPU_LAYERS

    wanted = asked_for or layers_of_model(layer_key) or CPU_LAYERS
    free_bytes, _ = torch.cuda.mem_get_info()
    layers = resident.fitting(wanted, layer_key, num_tokens, solution_count, free_bytes)
    if layers < wanted:
        console().print(f"{layers} of {wanted} layers fit into free memory")
    return layers


def measure(
    record: ServedRecord,
    solutions: Solutions,
    layer_key: str,
    round_count: int,
    output: Path | None,
) -> None:
    """Measure the points that the record's head asks for: add them to the record, write it to the
    output file and show it.

    The file is written whole at each token count, so an older record stays until there is a point.
    """
    screen = console()
    head = record.head
    points_by_tokens = points_at_each_count(head, solutions, layer_key, round_count)
    try:
        for number, points in enumerate(points_by_tokens, 1):
            record.points.extend(points)
            if output:
                write_record(output, [head, *record.points])
            place = f"[{number}/{len(head.tokens)}]"
            for point in points:
                screen.print(f"{place} {progress_line(point)}")
    finally:  # after Ctrl-C, too
        if record.points:
            screen.print(InTerminal(titled_table(record)))


def points_at_each_count(
    head: Head, solutions: Solutions, layer_key: str, round_count: int
) -> Iterator[list[Point]]:
    """Yield the points of all solutions at each token count.

    Raises CannotRun where the layers do not fit into memory, as when other processes take it
    meanwhile. A solution that runs out of memory has that as its result.
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


def progress_line(point: Point) -> str:
    """Return a point's result, 'T=4  NAME  1.0300 ms', with why there is no graph, or the error."""
    result = point.error
    if result is None:
        result = f"{point.ms:.4f} ms"
        if point.not_captured:
            result += f", {point.not_captured}"
    return f"T={point.tokens}  {point.solution}  {result}"


def titled_table(record: ServedRecord) -> Table:
    """Return the table of a record, with machine, tolerance and protocol in its title.

    Where not all layers of the model were measured, a note has the predicted times of all.
    """
    drawn = table(record)
    measured_by = record.head.provenance
    conditions = f"{measured_by.tolerance}; {measured_by.protocol}"
    title = f"{drawn.title}\n{measured_by.hardware}\n{conditions}"
    return replace(drawn, title=title, notes=[*drawn.notes, *predicted_notes(record)])

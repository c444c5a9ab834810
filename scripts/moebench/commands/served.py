"""Time a forward pass: all MoE layers of a model, each with weights and routing of its own, as one
CUDA graph.

As many layers as the model has, or as fit into free memory. Solutions are timed in turns, eagerly
where there is no graph, and the last layer's answer is checked. Small T are decode steps, from 1024
on prefill chunks. Without a GPU it is a small definition with two layers, eagerly through Triton's
interpreter, which shows what is correct, not what is fast.
"""

import argparse

import torch

from moebench.core import provenance
from moebench.core.arguments import count, output_file
from moebench.core.errors import CannotRun, UserError
from moebench.core.schema import write_record
from moebench.judging.calling import device_here
from moebench.judging.selection import choose_geometry, select
from moebench.judging.tolerances import TOLERANCES
from moebench.operators.catalogue import definition_name, form, geometry_named
from moebench.operators.models import layer_of
from moebench.packing.fingerprint import fingerprint
from moebench.reports.served import table
from moebench.reports.table import console
from moebench.served import passes, resident
from moebench.served.record import Head, Point

TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 2048, 4096, 8192, 16384]
ON_CPU = {"tokens": [1, 4], "layers": 2}
TOLERANCE = TOLERANCES["relaxed"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--solutions", nargs="+", default=[], metavar="NAME", help="default: every solution")
    which = "an FP8 MoE layer; default: full with a GPU, else small"
    add("--definition", type=geometry_named, metavar="KEY", help=which)
    counts = "default: 14 counts from 1 to 16384; 1 and 4 without GPU"
    add("--tokens", nargs="+", type=count(), metavar="T", help=counts)
    add(
        "--layers",
        type=count(),
        metavar="N",
        help="at most so many; default: those of the model, 2 without a GPU",
    )
    add(
        "--turns",
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
    say = console().print
    on_gpu, device = torch.cuda.is_available(), device_here()
    geometry = choose_geometry(args.definition, on_gpu, args.solutions)
    if not form(geometry):
        raise UserError(f"--definition: got {geometry}, want an FP8 MoE layer")
    tokens = sorted(set(args.tokens or (TOKENS if on_gpu else ON_CPU["tokens"])))
    solutions = select(args.solutions, geometry, say)
    model = layer_of(geometry)
    wanted = layers = args.layers or (model.count if on_gpu and model else ON_CPU["layers"])
    if on_gpu:
        layers = resident.fitting(
            wanted, geometry, tokens[-1], len(solutions), torch.cuda.mem_get_info()[0]
        )
    if layers < wanted:
        say(f"{layers} of {wanted} layers fit into free memory")
    protocol = f"best of {args.turns} turns, median of 3 to 20 replays"
    by = provenance.here(
        device, tolerance=str(TOLERANCE), protocol=protocol, command=args.command_line
    )
    of = {
        "definition": definition_name(geometry),
        "of_model": model.count if model else None,
        "tokens": tokens,
    }
    hashes = {name: packed.hash() for name, packed in solutions.items()}
    marks = {name: fingerprint(packed) for name, packed in solutions.items()}
    head = Head(layers=layers, sources=hashes, fingerprints=marks, provenance=by, **of)
    points: list[Point] = []
    try:
        made = resident.make(geometry, layers, tokens[-1], device)
        for done, found in enumerate(
            passes.measure(solutions, made, tokens, args.turns, TOLERANCE, device), 1
        ):
            points += found
            if args.output:  # written whole each time: an older record stays until there is a point
                write_record(args.output, [head, *points])
            for point in found:
                said = point.error or f"{point.ms:.4f} ms" + (
                    f", {why}" if (why := point.not_captured) else ""
                )
                say(f"[{done}/{len(tokens)}] T={point.tokens}  {point.solution}  {said}")
    except (
        torch.OutOfMemoryError
    ) as error:  # others use the GPU, too; a solution's own is its result
        raise CannotRun(f"--layers: {layers} do not fit into GPU memory, want fewer") from error
    finally:  # after Ctrl-C, too
        if points:
            say(table(head, points).terminal())
    return 1 if any(point.error for point in points) else 0

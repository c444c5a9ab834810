"""Time and check solutions where nobody tuned: many token counts, and routings of four kinds.

Kinds: real (as the workloads), uniform, one (all tokens to the same experts, of which one is local), none (no local
expert). A layer that is whole on one GPU has no kind none, and with one all chosen experts are local. Times are FIB's,
with 3 warm-up runs and 20 iterations. A result is wrong beyond the tolerance, or if two runs differ.
"""

import argparse
import sys
from pathlib import Path

import torch
from flashinfer_bench import Solution
from rich.console import Console

from harness.core import provenance
from harness.core.arguments import Names, count, output
from harness.core.errors import CannotRun, UserError
from harness.core.schema import add_line
from harness.judging import sweep
from harness.judging.calling import device_here
from harness.judging.selection import select
from harness.judging.sweep_record import TARGETS, Head, Sweep
from harness.judging.tolerances import TOLERANCES
from harness.operators.arguments import add_definition
from harness.operators.routing_kinds import KINDS, TOKENS, kinds_of
from harness.packing import manifest
from harness.report import sweep as report
from harness.report.progress import progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--solutions", nargs="+", action=Names, default=[], metavar="NAME", help="default: every solution")
    add_definition(parser, default="full", help="an FP8 MoE layer; default: full")
    add("--tokens", nargs="+", type=count(0), default=TOKENS, metavar="T", help="default: 41 counts from 0 to 32768")
    add("--kinds", nargs="+", action=Names, choices=list(KINDS), default=[], help="default: all that it can have")
    beyond = "a result is wrong beyond it; default: relaxed"
    add("--tolerance", choices=list(TOLERANCES), default="relaxed", help=beyond)
    add("--target", choices=list(TARGETS), default="loose", help="loose: 1.5 x bound + 0.03 ms; tight: the workloads'")
    add("--output", type=output, metavar="PATH", help="record the sweep in this file, or as NAME.jsonl in this folder")


def record_files(output: Path | None, names: list[str]) -> dict[str, Path | None]:
    """The file that each solution's sweep is recorded in. Raises UserError for one file and several solutions."""
    if output is None:
        return dict.fromkeys(names)
    if len(names) == 1 and not output.is_dir():
        return {names[0]: output}
    if output.is_file() or output.suffix == ".jsonl":
        raise UserError(f"--output: got one file, {output}, for {len(names)} solutions, want a folder")
    return {name: output / f"{name}.jsonl" for name in names}


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False, markup=False)
    manifest.choose(args.solutions)
    if not (possible := kinds_of(args.definition)):
        raise UserError(f"--definition: got {args.definition}, want an FP8 MoE layer")
    if impossible := [kind for kind in args.kinds if kind not in possible]:
        raise UserError(f"--kinds: {args.definition} has every expert on one rank, so there is no {impossible[0]!r}")
    if not torch.cuda.is_available():
        raise CannotRun("a sweep takes times and needs a CUDA device; torch sees none")
    solutions, skipped = select(args.solutions, args.definition, console.print)
    for line in skipped:
        console.print(line)
    sweeps = measure(args, solutions, console, device_here())
    return 1 if any(point.error for one in sweeps for point in one.points) else 0


def measure(args: argparse.Namespace, solutions: dict[str, Solution], console: Console, device: str) -> list[Sweep]:
    """A sweep of each solution, by name -> packed solution, recorded and printed point by point; tables in the end.

    The tables of what was measured are printed after Ctrl-C, too.
    """
    kinds = dict.fromkeys(args.kinds or kinds_of(args.definition))
    routings = [(kind, tokens) for kind in kinds for tokens in sorted(set(args.tokens))]
    tolerance = TOLERANCES[args.tolerance]
    known = {"tolerance": str(tolerance), "protocol": sweep.PROTOCOL, "command": args.command_line}
    files, sweeps = record_files(args.output, list(solutions)), {}
    for name, solution in solutions.items():
        made = provenance.here(device, source_sha1=solution.hash(), **known)
        sweeps[name] = Sweep(
            Head(
                solution=name,
                definition=solution.definition,
                target=args.target,
                planned=len(routings),
                provenance=made,
            )
        )
        add_line(files[name], sweeps[name].head, first=True)
    try:
        # the bar is drawn between points only, or it would disturb their times
        with progress(console, len(routings), ticking=False) as started:
            for name, point in sweep.sweep(
                solutions, args.definition, routings, tolerance, args.target, device, started
            ):
                add_line(files[name], point, first=False)
                sweeps[name].points.append(point)
                at = f"[{routings.index((point.kind, point.tokens)) + 1}/{len(routings)}] T={point.tokens} {point.kind}"
                console.print(f"{at}  {name}  {point.error or f'{point.ms:.4f} ms'}")
    finally:
        for one in sweeps.values():
            if one.points:
                console.print(report.terminal(one).terminal())
    return list(sweeps.values())

"""Prepare the submission of a solution: to FlashInfer-Bench's public data set, or to its contest.

dataset: a pull request in FOLDER, new or a checkout: the Solution, its current traces, and a
description of what was run where. Refused for a solution that no trace shows PASSED as it is now.
FIB's `validate` reads it, where that is installed or FIB_MAIN names a checkout of FIB's main
branch.

contest: FOLDER in the layout of the public starter kit. Refused, with every reason at once, unless
recorded traces show the solution as it is now PASSED on all workloads at contest tolerance, and it
builds from the submission alone, in an empty folder. Exit status: 0 written, 1 refused, or validate
finds an error, 2 bad arguments.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from flashinfer_bench import Solution

from moebench.core import paths
from moebench.core.arguments import output_folder
from moebench.core.errors import UserError
from moebench.core.provenance import CLOCKS
from moebench.operators.catalogue import definition_name, layer_key_named
from moebench.packing import manifest, pack
from moebench.submission import contest, pull_request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="the solution")
    add(
        "--to",
        choices=["dataset", "contest"],
        default="contest",
        help="default: %(default)s",
    )
    add(
        "--into",
        type=output_folder,
        metavar="FOLDER",
        required=True,
        help="no file of anybody else is overwritten",
    )
    add(
        "--definition",
        type=layer_key_named,
        nargs="+",
        default=["full"],
        metavar="KEY",
        help="default: full",
    )
    add(
        "--baseline",
        metavar="NAME",
        help="dataset: the solution to be the baseline of a definition that has none",
    )

    evaluators = [target for target in get_args(manifest.Hardware) if target != "cpu"]
    add(
        "--hardware",
        choices=evaluators,
        default=contest.HARDWARE,
        help="contest: what evaluates; default: %(default)s",
    )
    add(
        "--traces",
        type=Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="default: this repository's traces",
    )


def main(args: argparse.Namespace) -> int:
    paths.require_clone("moebench submit")
    check_arguments(args)

    names = [args.name, args.baseline] if args.baseline else [args.name]
    packed, _ = pack.pack_all(names)
    check_definitions(args.definition, packed)
    if args.to == "contest":
        traces = args.traces or recorded_traces(args.definition, ["events"])
        solution = packed[args.name][args.definition[0]]
        is_written = contest.prepare(solution, args.into, traces, args.hardware)
        return 0 if is_written else 1

    return write_pull_requests(args, packed)


def write_pull_requests(
    args: argparse.Namespace, packed: dict[str, dict[str, Solution]]
) -> int:
    """Write a pull request for each definition, once all are known to be fit; return the exit
    status.
    """
    traces = args.traces or recorded_traces(args.definition, CLOCKS)
    pull_requests = []
    for key in args.definition:
        solution = packed[args.name][key]
        baselines = [packed[args.baseline][key]] if args.baseline else []
        pull_requests.append(pull_request.plan(solution, baselines, args.into, traces))
    are_valid = [pull_request.write(planned) for planned in pull_requests]
    return 0 if all(are_valid) else 1


def check_arguments(args: argparse.Namespace) -> None:
    """Raise UserError for options that do not go together."""
    if args.baseline == args.name:
        raise UserError(f"--baseline: got {args.name}, want another solution than NAME")
    if args.to != "contest":
        return
    if args.baseline:
        raise UserError("--baseline: it is for --to dataset")
    if len(args.definition) > 1:
        got = ", ".join(args.definition)
        raise UserError(f"--definition: got {got}, want one of them with --to contest")


def check_definitions(keys: list[str], packed: dict[str, dict[str, Solution]]) -> None:
    """Raise UserError for a definition that one of the solutions does not serve."""
    for name, solutions in packed.items():
        for key in keys:
            if key not in solutions:
                served = ", ".join(solutions)
                raise UserError(
                    f"--definition: got {key}, want what {name} serves: {served}"
                )


def recorded_traces(keys: list[str], clocks: Iterable[str]) -> list[Path]:
    """Return this repository's trace files of these layer keys and clocks."""
    files = []
    for key in keys:
        name = definition_name(key)
        files += [paths.trace_file(name, clock) for clock in clocks]
    return [file for file in files if file.exists()]

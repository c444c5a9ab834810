"""Prepare the submission of a solution: to FlashInfer-Bench's public data set, or to its contest.

dataset: a pull request in FOLDER, new or a checkout: the Solution, its current traces, and a
description of what was run where. FIB's `validate` reads it, where that is installed or FIB_MAIN
names a checkout of FIB's main branch.

contest: FOLDER in the layout of the public starter kit. Refused, with every reason at once, unless
recorded traces show the solution as it is now PASSED on all workloads at contest tolerance, and it
builds from the submission alone, in an empty folder. Exit status: 0 written, 1 refused, or validate
finds an error, 2 bad arguments.
"""

import argparse
from pathlib import Path
from typing import get_args

from moebench.core import paths
from moebench.core.arguments import output_folder
from moebench.core.errors import UserError
from moebench.operators.catalogue import definition_name, geometry_named
from moebench.packing import manifest, pack
from moebench.submission import contest, pull_request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="the solution")
    add("--to", choices=["dataset", "contest"], default="contest", help="default: %(default)s")
    add(
        "--into",
        type=output_folder,
        metavar="FOLDER",
        required=True,
        help="no file of anybody else is overwritten",
    )
    add(
        "--definition",
        type=geometry_named,
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
    known = [each for each in get_args(manifest.Hardware) if each != "cpu"]
    evaluates = "contest: what evaluates; default: %(default)s"
    add("--hardware", choices=known, default=contest.HARDWARE, help=evaluates)
    add(
        "--traces",
        type=Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="default: this repository's traces",
    )


def main(args: argparse.Namespace) -> int:
    if (
        args.baseline == args.name
        or args.to == "contest"
        and (args.baseline or len(args.definition) > 1)
    ):
        raise UserError(
            "--to contest takes one --definition and no --baseline, which is another solution than NAME"
        )
    packed, _ = pack.pack_all([args.name, *([args.baseline] if args.baseline else [])])
    for name, served in packed.items():
        if others := [key for key in args.definition if key not in served]:
            raise UserError(
                f"--definition: got {others[0]}, want what {name} serves: {', '.join(served)}"
            )
    recorded = map(paths.trace_file, map(definition_name, args.definition))
    given = args.traces or [path for path in recorded if path.exists()]
    submissions = [[served[key] for served in packed.values()] for key in args.definition]
    if args.to == "contest":
        return 0 if contest.prepare(submissions[0][0], args.into, given, args.hardware) else 1
    return 0 if all([pull_request.prepare(each, args.into, given) for each in submissions]) else 1

"""Prepare a leaderboard submission of one solution, in the layout of the public starter kit.

Refuses, with every reason at once, unless recorded traces show the solution as it is now PASSED on all workloads at
contest tolerance, and it builds from the submission alone, which is done in an empty folder. Exit status: 0 written,
1 refused, 2 bad arguments.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import get_args

from rich.console import Console

from harness.core.arguments import output_folder
from harness.operators.catalogue import geometry_named
from harness.packing import manifest
from harness.submission.prepare import HARDWARE, prepare

# In a subshell: the same lines work again after a failure. The kit's .gitignore names solution.json.
HAND_IN = """  (cd {folder} &&
  git init --quiet &&
  git add --all --force config.toml solution *solution.json &&
  git commit --quiet --allow-empty --message {name} &&
  git tag submission-vN &&
  git push URL_OF_YOUR_FORK submission-vN)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="the solution")
    into = "new, empty, written by this command before, or a clone of your fork without its config.toml and solution/"
    which = "what is submitted, one definition at a time; default: full"
    add("--definition", type=geometry_named, default="full", metavar="KEY", help=which)
    add("--into", type=output_folder, metavar="FOLDER", required=True, help=into)
    machines = [name for name in get_args(manifest.Hardware) if name != "cpu"]
    add("--hardware", choices=machines, default=HARDWARE, help=f"the evaluation's; default: {HARDWARE}")
    add("--traces", type=Path, nargs="+", default=[], metavar="PATH", help="default: this repository's traces")


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 160)
    if not prepare(args.name, args.definition, args.into, args.hardware, args.traces, console):
        return 1
    commands = HAND_IN.format(folder=shlex.quote(str(args.into)), name=args.name)
    print(f"To hand it in, with the next number in your fork for N:\n{commands}")
    return 0

"""Prepare a leaderboard submission of one solution, in the layout of the public starter kit.

Refuses, with every reason at once, unless recorded traces show the solution as it is now PASSED on all workloads at
contest tolerance, it imports only what the evaluation machine offers, and it builds from the submission alone, which is
done in an empty folder. Exit status: 0 written, 1 refused, 2 bad arguments.
"""

import argparse
import sys
from pathlib import Path
from typing import get_args

from rich.console import Console

from harness.packing import manifest
from harness.submission.evaluation_machine import HARDWARE
from harness.submission.prepare import prepare

# git init: a repository of its own, wherever the folder lies; --force: the kit's .gitignore names solution.json
HAND_IN = (
    "git init && git add --all --force . && git commit --message {name} && git tag submission-v1 && "
    "git push URL_OF_YOUR_FORK HEAD submission-v1"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="the solution")
    add("--into", type=Path, metavar="FOLDER", required=True, help="new, empty, or written by this command before")
    machines = [name for name in get_args(manifest.Hardware) if name != "cpu"]
    add("--hardware", choices=machines, default=HARDWARE, help=f"the evaluation's; default: {HARDWARE}")
    add("--traces", type=Path, nargs="+", default=[], metavar="PATH", help="default: this repository's traces")


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 160)
    if not prepare(args.name, args.into, args.hardware, args.traces, console):
        return 1
    console.print(f"To hand it in, from that folder: {HAND_IN.format(name=args.name)}", soft_wrap=True, highlight=False)
    return 0

"""Pack solutions into the JSON that FlashInfer-Bench reads, with the shared stages they list."""

import argparse
from pathlib import Path

from harness.core.arguments import Names
from harness.operators.catalogue import GEOMETRIES
from harness.packing import pack


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", action=Names, metavar="NAME", help="default: every solution")
    parser.add_argument("--into", type=Path, metavar="PATH", help="register in another FlashInfer-Trace data set")
    parser.add_argument(
        "--geometry",
        nargs="+",
        action=Names,
        choices=list(GEOMETRIES),
        default=["full"],
        help="what to register with --into; default: full",
    )


def main(args: argparse.Namespace) -> int:
    files = pack.pack_into(args.names, args.into, args.geometry) if args.into else pack.pack_here(args.names)
    for path in files:
        print(path)
    return 0

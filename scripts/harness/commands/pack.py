"""Pack solutions into the JSON that FlashInfer-Bench reads, with the shared stages they list."""

import argparse
import sys
from pathlib import Path

from harness.operators.catalogue import GEOMETRIES
from harness.packing import manifest, pack


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: every solution")
    parser.add_argument("--into", type=Path, metavar="PATH", help="register in another FlashInfer-Trace data set")
    parser.add_argument(
        "--geometry",
        nargs="+",
        choices=list(GEOMETRIES),
        default=["full"],
        help="what to register with --into; default: full",
    )


def main(args: argparse.Namespace) -> int:
    try:
        if args.into:
            files = pack.pack_into(args.names, args.into, args.geometry)
        else:
            files = pack.pack_here(args.names)
    except manifest.PackingError as error:
        print(error, file=sys.stderr)
        return 1
    for path in files:
        print(path)
    return 0

"""Write workloads/moe/<definition>.jsonl and the tensors they refer to, under blob/.

A tensor file that is there and has the recorded checksum is not written again.
"""

import argparse
import sys

from harness.core.errors import UserError
from harness.operators import workloads
from harness.operators.catalogue import GEOMETRIES, definition_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("geometry", nargs="*", help=f"of {', '.join(GEOMETRIES)}; default: all")


def main(args: argparse.Namespace) -> int:
    wanted = args.geometry or list(GEOMETRIES)
    if unknown := [name for name in wanted if name not in GEOMETRIES]:
        raise UserError(f"unknown geometry {unknown[0]!r}; there are: {', '.join(GEOMETRIES)}")
    for geometry in wanted:
        try:
            written, kept = workloads.make(geometry)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{definition_name(geometry)}: {written} tensor files written, {kept} already good")
    return 0

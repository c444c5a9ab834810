"""Write workloads/<op_type>/<definition>.jsonl and the tensors they refer to, under blob/.

A tensor file that is there and has the recorded checksum is not written again.
"""

import argparse

from harness.operators import workloads
from harness.operators.catalogue import GEOMETRIES, definition_name, geometry_named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(GEOMETRIES)
    parser.add_argument("definition", nargs="*", help=f"of {known}, or definitions' names; default: all")


def main(args: argparse.Namespace) -> int:
    for geometry in [geometry_named(name) for name in args.definition] or GEOMETRIES:
        written, kept = workloads.make(geometry)
        print(f"{definition_name(geometry)}: {written} tensor files written, {kept} already good")
    return 0

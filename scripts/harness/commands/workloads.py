"""Write workloads/<op_type>/<definition>.jsonl and the tensors they refer to, under blob/.

A tensor file that is there and has the recorded checksum is not written again.
"""

import argparse

from harness.operators import workloads
from harness.operators.arguments import add_definitions
from harness.operators.catalogue import GEOMETRIES, definition_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_definitions(parser, "definition", nargs="*", help="default: all")


def main(args: argparse.Namespace) -> int:
    for geometry in args.definition or GEOMETRIES:
        written, kept = workloads.make(geometry)
        print(f"{definition_name(geometry)}: {written} tensor files written, {kept} already good")
    return 0

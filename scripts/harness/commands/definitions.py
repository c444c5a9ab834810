"""Write definitions/<op_type>/<name>.json, FIB's form of the definitions, from the modules that state them."""

import argparse
import sys

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.operators.catalogue import GEOMETRIES, definition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a file is not current")


def main(args: argparse.Namespace) -> int:
    status = 0
    for geometry in GEOMETRIES:
        stated = definition(geometry)
        path = paths.definition_file(stated.name)
        content = stated.model_dump_json(indent=2, exclude_unset=True) + "\n"
        if not args.check:
            write_atomically(path, content)
            print(path.relative_to(paths.ROOT))
        elif not path.exists() or path.read_text() != content:
            where = path.relative_to(paths.ROOT)
            print(f"{where}: not what its module states; `moebench definitions` writes it", file=sys.stderr)
            status = 1
    return status

"""Write definitions/<op_type>/<name>.json, FIB's form of the definitions, from the modules that state them."""

import argparse

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.operators.catalogue import GEOMETRIES, definition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def main(args: argparse.Namespace) -> int:
    for stated in map(definition, GEOMETRIES):
        path = paths.definition_file(stated.name)
        write_atomically(path, stated.model_dump_json(indent=2, exclude_unset=True) + "\n")
        print(path.relative_to(paths.ROOT))
    return 0

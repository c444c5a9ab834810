"""Write definitions/<op_type>/<name>.json, FIB's form of the definitions, from the modules that state them."""

import argparse

from harness.core import paths
from harness.operators.catalogue import GEOMETRIES, definition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def main(args: argparse.Namespace) -> int:
    for geometry in GEOMETRIES:
        stated = definition(geometry)
        path = paths.definition_file(stated.name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(stated.model_dump_json(indent=2, exclude_unset=True) + "\n")
        print(path.relative_to(paths.ROOT))
    return 0

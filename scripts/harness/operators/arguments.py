"""Definitions as arguments of commands: by key or by name, and listed by --help."""

import argparse

from harness.core.arguments import Names
from harness.operators.catalogue import GEOMETRIES, definition_name, geometry_named

METAVAR = "KEY|NAME"


def listed() -> str:
    """For --help: each definition's key and name."""
    width = max(map(len, GEOMETRIES))
    lines = [f"  {key.ljust(width)}  {definition_name(key)}" for key in GEOMETRIES]
    return "\n".join(["definitions, by key or by name:", *lines])


class Geometries(Names):
    """Keys and names of definitions, with spaces or commas between them, as keys without repetition; `every`: a word.

    Raises UserError for what is neither.
    """

    def __init__(self, *args, every: str | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.every = every

    def __call__(self, parser, namespace, values, option_string=None):
        super().__call__(parser, namespace, values, option_string)
        names = getattr(namespace, self.dest)
        geometries = [name if name == self.every else geometry_named(name) for name in names]
        setattr(namespace, self.dest, list(dict.fromkeys(geometries)))


def add_definition(parser: argparse.ArgumentParser, flag: str = "--definition", **how) -> None:
    """An argument that is a geometry, by any of its names; --help lists them in the end."""
    parser.add_argument(flag, type=geometry_named, metavar=METAVAR, **how)
    parser.epilog = listed()


def add_definitions(parser: argparse.ArgumentParser, flag: str = "--definition", nargs: str = "+", **how) -> None:
    """As `add_definition`, for a list of geometries."""
    parser.add_argument(flag, nargs=nargs, action=Geometries, metavar=METAVAR, **how)
    parser.epilog = listed()

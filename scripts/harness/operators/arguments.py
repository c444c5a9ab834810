"""Definitions as arguments of commands: by key or by name, and listed by --help."""

import argparse
from collections.abc import Iterable

from harness.core.arguments import Names
from harness.operators.catalogue import GEOMETRIES, ROUTED, definition_name, geometry_named

METAVAR = "KEY|NAME"


def listed(among: Iterable[str] = GEOMETRIES) -> str:
    """For --help: each definition's key and name, those behind a router apart."""
    width = max(map(len, GEOMETRIES))
    lines = {key: f"  {key.ljust(width)}  {definition_name(key)}" for key in among}
    inside = [line for key, line in lines.items() if key not in ROUTED]
    routed = [line for key, line in lines.items() if key in ROUTED]
    titled = ["definitions behind a router, if a solution serves them:", *routed] if routed else []
    return "\n".join(["definitions, by key or by name:", *inside, *titled])


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


def add_definition(parser: argparse.ArgumentParser, among: Iterable[str] = GEOMETRIES, **how) -> None:
    """--definition, a geometry by any of its names; --help lists those among which to choose in the end."""
    parser.add_argument("--definition", type=geometry_named, metavar=METAVAR, **how)
    parser.epilog = listed(among)


def add_definitions(parser: argparse.ArgumentParser, flag: str = "--definition", nargs: str = "+", **how) -> None:
    """As `add_definition`, for a list of geometries."""
    parser.add_argument(flag, nargs=nargs, action=Geometries, metavar=METAVAR, **how)
    parser.epilog = listed()

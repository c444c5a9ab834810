"""Start a solution in solutions/NAME/: a manifest and a main.py that runs and passes as it is.

It is the FP8 layer in plain torch, stage by stage; with --from triton in Triton, from the shared
stages; with the name of a solution a copy of its files. It serves the first definition, or those
that --definition names, and the small one of the same routing, which needs no GPU.
docs/add_a_solution.md says what to do next.
"""

import argparse
import json
import re
from pathlib import Path

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.core.names import unknown
from moebench.operators.catalogue import FP8_MOE, ROUTED, form, geometry_named, operator, small_like
from moebench.packing.manifest import (
    MANIFEST,
    NOT_SOLUTIONS,
    read_manifest,
    readable,
    solution_names,
)

TEMPLATES = Path(__file__).with_name(
    "new_solution"
)  # folders, as those of solutions that are a start
SERVED = re.compile(
    r"^definitions = \[.*?\]\n|^\[\[serves\]\].*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL
)
OF_THE_ORIGINAL = re.compile(r"^start = [^\n]*\n|^\[facts\].*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits and underscores")
    what = f"{', '.join(starts())}, or a solution to copy; default: %(default)s"
    parser.add_argument("--from", dest="original", metavar="START", default="torch", help=what)
    served = "what it shall serve; default: full and small, or what the original serves"
    parser.add_argument(
        "--definition", nargs="+", type=geometry_named, default=[], metavar="KEY", help=served
    )


def starts() -> dict[str, Path]:
    """What --from may name beside solutions -> folder."""
    found = {
        manifest.start: paths.SOLUTIONS / name
        for name, manifest in readable().items()
        if manifest.start
    }
    return found | {folder.name: folder for folder in TEMPLATES.iterdir()}


def check_name(name: str) -> None:
    """Raise UserError for a name that no solution can have, or that one has already."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(
            f"NAME: got {name!r}, want lower-case letters, digits and underscores, a letter first"
        )
    if name in NOT_SOLUTIONS or (paths.SOLUTIONS / name).exists():
        raise UserError(f"NAME: there is a solutions/{name}/ already, want another name")


def files_of(original: str, copy: str) -> dict[str, bytes]:
    """Path -> content of a start, or of a solution's own folder, whose headers are included as
    those of `copy`. Raises UserError for neither.
    """
    known = starts() | {name: paths.SOLUTIONS / name for name in solution_names()}
    if original not in known:
        raise UserError(f"--from: {unknown('solution', original, known)}")
    folder = known[original]
    own_include = f'#include "{folder.name}/'.encode()
    copied_include = f'#include "{copy}/'.encode()

    files = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            name = path.relative_to(folder).as_posix().removesuffix(".template")
            files[name] = path.read_bytes().replace(own_include, copied_include)
    return files


def with_definitions(manifest: str, geometries: list[str]) -> str:
    """A manifest's text that serves these geometries and the small one of each one's routing."""
    served = dict.fromkeys([*geometries, *map(small_like, geometries)])
    line = f"definitions = {json.dumps(list(served))}\n"
    return re.sub(
        r"^(entry_point\s*=.*\n)",
        rf"\1{line}",
        SERVED.sub("", manifest),
        count=1,
        flags=re.MULTILINE,
    )


def main(args: argparse.Namespace) -> int:
    check_name(args.name)
    files, start = files_of(args.original, args.name), args.original in starts()
    first = None if start else read_manifest(args.original).definitions[0]
    able = FP8_MOE if start else [*FP8_MOE, *ROUTED] if form(first) else operator(first).GEOMETRIES
    if others := [key for key in args.definition if key not in able]:
        raise UserError(
            f"--definition: got {others[0]}, want what {args.original} can serve, or another --from"
        )
    manifest = re.sub(
        r"^name\s*=.*$",
        f'name = "{args.name}"',
        files[MANIFEST].decode(),
        count=1,
        flags=re.MULTILINE,
    )
    manifest = with_definitions(manifest, args.definition) if args.definition else manifest
    files[MANIFEST] = (OF_THE_ORIGINAL.sub("", manifest).rstrip() + "\n").encode()
    for name, content in sorted(files.items()):
        write_atomically(paths.SOLUTIONS / args.name / name, content)
    print(
        f"solutions/{args.name}/: {', '.join(sorted(files))}\nNext: moebench run --solutions {args.name}"
    )
    return 0

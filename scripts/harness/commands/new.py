"""Start a solution in solutions/NAME/: a manifest and a main.py that runs and passes as it is.

It is the FP8 layer in plain torch, stage by stage; with --from triton in Triton, from the shared stages; with the name
of a solution a copy of its files. docs/add_a_solution.md says what to do next.
"""

import argparse
import re
from pathlib import Path

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.core.errors import UserError
from harness.core.names import unknown
from harness.packing.manifest import MANIFEST, NOT_SOLUTIONS, solution_names

TEMPLATES = Path(__file__).with_name("new_solution")  # a folder for each of STARTS
STARTS = ("torch", "triton")
FACTS = re.compile(r"^\[facts\].*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL)  # they state what the original is


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits and underscores")
    what = f"{', '.join(STARTS)}, or a solution to copy; default: {STARTS[0]}"
    parser.add_argument("--from", dest="original", metavar="START", default=STARTS[0], help=what)


def check_name(name: str) -> None:
    """Raise UserError for a name that no solution can have, or that one has already."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        wanted = "lower-case letters, digits and underscores, a letter first"
        raise UserError(f"NAME: got {name!r}, want {wanted}")
    if name in NOT_SOLUTIONS or (paths.SOLUTIONS / name).exists():
        raise UserError(f"NAME: there is a solutions/{name}/ already, want another name")


def files_of(original: str) -> dict[str, str]:
    """File name -> text of a start, or of a solution's own folder. Raises UserError for neither."""
    existing = solution_names(paths.SOLUTIONS)
    if original not in (*STARTS, *existing):
        raise UserError(f"--from: {unknown('solution', original, [*STARTS, *existing])}")
    folder = TEMPLATES / original if original in STARTS else paths.SOLUTIONS / original
    return {path.name.removesuffix(".template"): path.read_text() for path in folder.iterdir() if path.is_file()}


def main(args: argparse.Namespace) -> int:
    check_name(args.name)
    files = files_of(args.original)
    manifest = re.sub(r"^name = .*$", f'name = "{args.name}"', files[MANIFEST], count=1, flags=re.MULTILINE)
    files[MANIFEST] = FACTS.sub("", manifest).rstrip() + "\n"
    for name, text in sorted(files.items()):
        write_atomically(paths.SOLUTIONS / args.name / name, text)
    print(f"solutions/{args.name}/: {', '.join(sorted(files))}")
    print(f"Next: moebench run --solutions {args.name}")
    return 0

"""Start a solution in solutions/NAME/: a manifest and a main.py that runs and passes as it is.

It is the FP8 layer in plain torch, stage by stage; with --from triton in Triton, from the shared
stages; with the name of a solution a copy of its files. It serves the first definition, or those
that --definition names, and the small one of the same routing, which needs no GPU.
docs/add_a_solution.md says what to do next.
"""

import argparse
import getpass
import json
import keyword
import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.core.names import installed_as, is_pythons_own, unknown
from moebench.operators import catalogue
from moebench.operators.catalogue import form, layer_key_named, operator, small_like
from moebench.packing.manifest import (
    MANIFEST,
    NOT_SOLUTIONS,
    read_manifest,
    readable_manifests,
    solution_names,
)

# a folder for each START that is no solution
TEMPLATES = Path(__file__).with_name("new_solution")
# compiled code, and pages that are about the original alone
NOT_COPIED = (".pyc", ".md")
REPOSITORY_FOLDERS = {"definitions", "workloads", "traces", "solutions"}

# Parts of a manifest's text. A table of TOML ends before the next one or at the end of the file.
NAME_LINE = re.compile(r"^name\s*=.*$", re.MULTILINE)
AUTHOR_LINE = re.compile(r"^author\s*=.*$", re.MULTILINE)
ENTRY_POINT_LINE = re.compile(r"^entry_point\s*=.*\n", re.MULTILINE)
DEFINITIONS = re.compile(r"^definitions = \[.*?\]\n", re.MULTILINE | re.DOTALL)
SERVES = re.compile(r"^\[\[serves\]\].*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
START_LINE = re.compile(r"^start = [^\n]*\n", re.MULTILINE)
FACTS = re.compile(r"^\[facts\].*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Original:
    """What a new solution is copied from. is_start: whether it is a START of --from, which is meant
    to be copied, or merely a solution.
    """

    name: str
    folder: Path
    is_start: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="lower-case letters, digits and underscores")

    start_names = ", ".join(starts())
    add(
        "--from",
        dest="original",
        metavar="START",
        default="torch",
        help=f"{start_names}, or a solution to copy; default: %(default)s",
    )
    add(
        "--definition",
        nargs="+",
        type=layer_key_named,
        default=[],
        metavar="KEY",
        help="what it shall serve; default: full and small, or what the original serves",
    )
    add(
        "--author",
        metavar="NAME",
        help="default: git's user.name, else your login name",
    )


def main(args: argparse.Namespace) -> int:
    check_name(args.name)
    original = original_named(args.original)
    check_definitions(args.definition, original)
    author = checked_author(default_author() if args.author is None else args.author)

    files = files_of(original, args.name)
    text = files[MANIFEST].decode()
    files[MANIFEST] = manifest_of_copy(
        text, args.name, author, args.definition
    ).encode()

    folder = paths.new_solutions() / args.name
    if not paths.IN_CLONE:
        copy_solutions(folder.parent)
    write_folder(folder, files)

    names = ", ".join(sorted(files))
    print(f"{shown(folder)}/: {names}; its author is {author}")
    print(f"Next: moebench run --solutions {args.name}")
    return 0


def shown(folder: Path) -> Path:
    """Return a folder's path from the working folder if it is below, else as it is."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def starts() -> dict[str, Path]:
    """Return START of --from -> the folder that is copied."""
    folders = {}
    for name, manifest in readable_manifests().items():
        if manifest.start:
            folders[manifest.start] = paths.SOLUTIONS / name
    for template in TEMPLATES.iterdir():
        folders[template.name] = template
    return folders


def original_named(name: str) -> Original:
    """Return the START or the solution that --from names. Raises UserError for any other name."""
    known_starts = starts()
    if name in known_starts:
        return Original(name, known_starts[name], is_start=True)

    if name not in solution_names():
        raise UserError(
            f"--from: {unknown('solution', name, [*known_starts, *solution_names()])}"
        )
    return Original(name, paths.SOLUTIONS / name, is_start=False)


def check_name(name: str) -> None:
    """Raise UserError for a name that no solution can have, that is taken, or that would hide
    something else (`owner_of`).
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(
            f"NAME: got {name!r}, want lower-case letters, digits and underscores, a letter first"
        )
    if (
        name in NOT_SOLUTIONS
        or name in solution_names()
        or (paths.SOLUTIONS / name).exists()
    ):
        raise UserError(
            f"NAME: there is a solutions/{name}/ already, want another name"
        )

    owner = owner_of(name)
    if owner:
        raise UserError(
            f"NAME: got {name!r}, which is {owner}; want another name, as my_{name}"
        )


def owner_of(name: str) -> str | None:
    """Return what has a name already in Python or in this project, "a word of Python", or None."""
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return "a word of Python"
    if is_pythons_own(name):
        return "a module of Python's own"
    if Path(__file__).with_name(f"{name}.py").exists():
        return "a command of moebench"
    if name in REPOSITORY_FOLDERS:
        return "a folder of this repository"
    distributions = installed_as(name)
    if distributions:
        return f"a module of {distributions[0]}, which is installed"
    return None


def check_definitions(keys: list[str], original: Original) -> None:
    """Raise UserError for a layer that a copy of the original cannot serve."""
    if original.is_start:
        served = {*catalogue.fp8_moe()}
    else:
        first = read_manifest(original.name).definitions[0]
        served = {*operator(first).layer_sizes()}
        if form(first):  # an FP8 layer: with the router inside or before it
            served = {*catalogue.fp8_moe(), *catalogue.routed()}

    for key in keys:
        if key not in served:
            raise UserError(
                f"--definition: got {key}, want what {original.name} can serve, or another --from"
            )


def default_author() -> str:
    """Return git's user.name, or else the login name. Raises UserError where there is neither."""
    with suppress(FileNotFoundError):  # there may be no git
        command = ["git", "config", "user.name"]
        author = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        if author:
            return author

    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # a user id without a name, as containers have
        raise UserError(
            "--author: want your name; git config user.name has none"
        ) from error


def checked_author(author: str) -> str:
    """Return the author's name without blanks around it.

    In a data set an author's solutions lie in a folder of that name: raises UserError for a name
    that no folder can have.
    """
    author = author.strip()
    is_folder_name = re.fullmatch(r"[^./\\][^/\\]*", author) is not None
    if not is_folder_name or not author.isprintable():
        raise UserError(
            f"--author: got {author!r}, want a name without / that a folder can have"
        )
    return author


def files_of(original: Original, name: str) -> dict[str, bytes]:
    """Return path -> content, of the files of a copy of the original.

    Where a file includes a header of the original's folder, the copy includes its own header. name:
    of the copy.
    """
    old_include = f'#include "{original.folder.name}/'.encode()
    new_include = f'#include "{name}/'.encode()

    files = {}
    for path in original.folder.rglob("*"):
        if path.is_file() and path.suffix not in NOT_COPIED:
            below = path.relative_to(original.folder).as_posix()
            relative = below.removesuffix(".template")
            files[relative] = path.read_bytes().replace(old_include, new_include)
    return files


def manifest_of_copy(manifest: str, name: str, author: str, keys: list[str]) -> str:
    """Return a manifest's text with a new name and author, without what is said of the original
    alone.

    keys: of the layers that the copy serves, beside the small layer of the same routing; [] for
    those of the original.
    """
    author_line = f"author = {json.dumps(author, ensure_ascii=False)}"
    manifest = NAME_LINE.sub(f'name = "{name}"', manifest, count=1)
    manifest = AUTHOR_LINE.sub(lambda _: author_line, manifest, count=1)
    manifest = START_LINE.sub("", manifest)
    manifest = FACTS.sub("", manifest)
    if keys:
        served = list(dict.fromkeys([*keys, *map(small_like, keys)]))
        definitions_line = rf"\g<0>definitions = {json.dumps(served)}\n"
        manifest = DEFINITIONS.sub("", manifest)
        manifest = SERVES.sub("", manifest)
        manifest = ENTRY_POINT_LINE.sub(definitions_line, manifest, count=1)
    return manifest.rstrip() + "\n"


def copy_solutions(folder: Path) -> None:
    """Copy the installed solutions to a folder that has none, so that the new one lies beside them.

    common/ is copied last: a folder with common/ counts as a complete copy.
    """
    shared = folder / "common"
    if shared.is_dir():
        return
    others = shutil.ignore_patterns("common", "packed", "__pycache__")
    shutil.copytree(paths.SOLUTIONS, folder, ignore=others, dirs_exist_ok=True)

    temporary = folder / f".common-{os.getpid()}"
    try:
        shutil.copytree(paths.SOLUTIONS / "common", temporary)
        temporary.rename(shared)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    """Write a folder with all its files; after Ctrl-C or an error there is no folder."""
    temporary = folder.with_name(f".new-{folder.name}-{os.getpid()}")
    try:
        for name, content in files.items():
            write_atomically(temporary / name, content)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

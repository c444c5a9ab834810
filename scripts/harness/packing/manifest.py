"""solution.toml: what a solution is called, what it needs and serves."""

import tomllib
from collections.abc import Collection
from pathlib import Path

from harness.core import paths
from harness.core.errors import UserError
from harness.operators import catalogue
from harness.operators.catalogue import GEOMETRIES

MANIFEST = "solution.toml"
REQUIRED = {"name", "author", "description", "language", "entry_point", "target_hardware"}
OPTIONAL = {"destination_passing_style", "dependencies", "kernels", "borrowed", "definitions", "based_on"}
UNPACKED = {"stages", "first_use", "facts"}  # for this repository's commands; not in the Solution, nor in its hash
NOT_SOLUTIONS = {"kernels", "packed"}


class PackingError(UserError):
    """A solution cannot be packed; the message is one line for the user."""

    status = 1


def solution_names(folder: Path = paths.SOLUTIONS) -> list[str]:
    """Names of the solutions below folder, sorted."""
    found = (path.parent.name for path in folder.glob(f"*/{MANIFEST}"))
    return sorted(set(found) - NOT_SOLUTIONS)


def choose(names: list[str], folder: Path = paths.SOLUTIONS) -> list[str]:
    """names, or every solution when there are none. Raises UserError for an unknown one."""
    existing = solution_names(folder)
    for name in names:
        if name not in existing:
            listed = ", ".join(existing) or "none"
            raise UserError(f"unknown solution {name!r}; there are: {listed}")
    return list(dict.fromkeys(names)) or existing


def packed_name(name: str, geometry: str) -> str:
    """FIB wants names unique in a data set; only an operator's full geometry keeps the plain one."""
    if geometry in catalogue.FULL:
        return name
    return "_".join([name, *(f"{size[0]}{value}" for size, value in GEOMETRIES[geometry].items())])


def served(manifest: dict) -> list[str]:
    """The geometries that a solution serves; one that names none serves those of the first operator."""
    return list(manifest.get("definitions", catalogue.OPERATORS[0].geometries))


def read_manifest(name: str, folder: Path = paths.SOLUTIONS) -> dict:
    """solution.toml as a dict, with its base's `kernels`, `borrowed` and `stages` if it has a base and none of its own.

    Raises PackingError for missing, unknown or contradicting keys.
    """
    manifest = _parse(name, folder)
    if missing := sorted(REQUIRED - manifest.keys()):
        raise PackingError(f"{name}: {MANIFEST} lacks {', '.join(missing)}")
    if extra := sorted(manifest.keys() - REQUIRED - OPTIONAL - UNPACKED):
        raise PackingError(f"{name}: {MANIFEST} has unknown key {', '.join(extra)}")
    if manifest["name"] != name:
        raise PackingError(f"{name}: {MANIFEST} says name = {manifest['name']!r}, want the folder's")
    for geometry in manifest.get("definitions", []):
        if geometry not in GEOMETRIES:
            known = ", ".join(GEOMETRIES)
            raise PackingError(f"{name}: unknown definition {geometry!r}; there are: {known}")
    if "based_on" in manifest:
        base, others = manifest["based_on"], [other for other in solution_names(folder) if other != name]
        if base not in others:
            listed = ", ".join(others) or "none"
            raise PackingError(f"{name}: based on {base!r}, not another solution; there are: {listed}")
        base_manifest = _parse(base, folder)
        if "based_on" in base_manifest:
            raise PackingError(f"{name}: based on {base!r}, which has a base itself; name that one")
        for key, empty in (("kernels", []), ("borrowed", []), ("stages", {})):
            manifest.setdefault(key, base_manifest.get(key, empty))
    return manifest


def _parse(name: str, folder: Path) -> dict:
    try:
        return tomllib.loads((folder / name / MANIFEST).read_text())
    except tomllib.TOMLDecodeError as error:
        raise PackingError(f"{name}: {MANIFEST}: {error}") from error


def solutions_of(geometries: Collection[str], folder: Path = paths.SOLUTIONS) -> list[str]:
    """Names of the solutions that serve one of these geometries. Raises PackingError."""
    names = solution_names(folder)
    return [name for name in names if set(served(read_manifest(name, folder))) & set(geometries)]

"""Gather a solution's folder and the shared stages it lists into FIB Solutions."""

import ast
import tomllib
from pathlib import Path, PurePosixPath
from types import ModuleType

from flashinfer_bench import BuildSpec, Solution, SourceFile
from pydantic import ValidationError

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.core.schema import first_fault
from harness.operators import catalogue
from harness.operators.catalogue import GEOMETRIES, definition_name

MANIFEST = "solution.toml"
REQUIRED = {"name", "author", "description", "language", "entry_point", "target_hardware"}
OPTIONAL = {"destination_passing_style", "dependencies", "kernels", "borrowed", "definitions", "based_on"}
UNPACKED = {"stages", "first_use", "facts"}  # for this repository's commands; not in the Solution, nor in its hash
NOT_SOLUTIONS = {"kernels", "packed"}


class PackingError(Exception):
    """A solution cannot be packed; the message is one line for the user."""


def solution_names(folder: Path = paths.SOLUTIONS) -> list[str]:
    """Names of the solutions below folder, sorted."""
    found = (path.parent.name for path in folder.glob(f"*/{MANIFEST}"))
    return sorted(set(found) - NOT_SOLUTIONS)


def is_current(name: str, solution_sha1: str) -> bool:
    """Whether a figure's source is still the solution's, in any of its definitions; not for one that is gone."""
    return name in solution_names() and solution_sha1 in {solution.hash() for solution in pack(name).values()}


def choose(names: list[str], folder: Path = paths.SOLUTIONS) -> list[str]:
    """names, or every solution when there are none. Raises PackingError for an unknown one."""
    existing = solution_names(folder)
    for name in names:
        if name not in existing:
            listed = ", ".join(existing) or "none"
            raise PackingError(f"unknown solution {name!r}; there are: {listed}")
    return list(dict.fromkeys(names)) or existing


def packed_name(name: str, geometry: str) -> str:
    """FIB wants names unique in a data set; only an operator's full geometry keeps the plain one."""
    if geometry in catalogue.FULL:
        return name
    return "_".join([name, *(f"{size[0]}{value}" for size, value in GEOMETRIES[geometry].items())])


def served(manifest: dict) -> list[str]:
    """The geometries that a solution serves; one that names none serves those of the first operator."""
    return list(manifest.get("definitions", catalogue.OPERATORS[0].GEOMETRIES))


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


def solutions_of(operator: ModuleType, folder: Path = paths.SOLUTIONS) -> list[str]:
    """Names of the solutions that serve a geometry of the operator, a module in definitions/. Raises PackingError."""
    names = solution_names(folder)
    return [name for name in names if set(served(read_manifest(name, folder))) & operator.GEOMETRIES.keys()]


def gather(name: str, manifest: dict, folder: Path = paths.SOLUTIONS) -> dict[str, str]:
    """Path inside the bundle -> text, sorted by path. Raises PackingError for a missing stage or borrowed file.

    Files of the solution's own folder stand in for those of its base with the same name. A borrowed file, named as
    <other solution>/<file>, is packed beside the solution's own and may not have the name of one of them.
    """
    folders = [folder / part for part in (manifest.get("based_on"), name) if part]
    files = [path for part in folders for path in part.iterdir() if path.suffix in {".py", ".cu", ".cuh"}]
    sources = {path.name: path.read_text() for path in files}
    for borrowed in manifest.get("borrowed", []):
        path = folder / borrowed
        if PurePosixPath(borrowed).parent.name not in solution_names(folder) or not path.is_file():
            raise PackingError(f"{name}: borrowed {borrowed!r} is not <solution>/<file> of another solution")
        if path.name in sources:
            raise PackingError(f"{name}: borrowed {borrowed!r}, but there is a {path.name} here already")
        sources[path.name] = path.read_text()
    for stage in manifest.get("kernels", []):
        path = folder / "kernels" / f"{stage}.py"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in path.parent.glob("*.py"))) or "none"
            raise PackingError(f"{name}: no shared stage {stage!r}; there are: {known}")
        for part in (path, path.with_suffix(".cpp")):  # what the stage compiles for its host code
            if part.is_file():
                sources[f"kernels/{part.name}"] = part.read_text()
    return dict(sorted(sources.items()))


def check_imports(name: str, sources: dict[str, str]) -> None:
    """Raise PackingError where a relative import names a module that is not in the bundle."""
    modules = {PurePosixPath(path).with_suffix("").parts for path in sources if path[-3:] == ".py"}
    packages = {module[:n] for module in modules for n in range(len(module))}
    for path, text in sources.items():
        if not path.endswith(".py"):
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            raise PackingError(f"{name}: {path}:{error.lineno}: {error.msg}") from error
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.level == 0:
                continue
            place = f"{name}: {path}:{node.lineno}"
            parts = PurePosixPath(path).parts
            if node.level > len(parts):
                raise PackingError(f"{place}: relative import leaves the bundle")
            target = parts[: len(parts) - node.level] + tuple((node.module or "").split("."))
            target = tuple(part for part in target if part)
            wanted = [target] if node.module else [(*target, alias.name) for alias in node.names]
            if target in packages and target not in modules and node.module:
                wanted = [(*target, alias.name) for alias in node.names]
            for module in wanted:
                if module not in modules:
                    raise PackingError(f"{place}: imports {'/'.join(module)}.py, which is not packed")


def check_entry_point(name: str, entry_point: str, sources: dict[str, str]) -> None:
    """Raise PackingError unless a Python entry point names a top-level function of the bundle."""
    path, _, function = entry_point.partition("::")
    if path not in sources:
        raise PackingError(f"{name}: entry point {entry_point!r}: no file {path!r} in the bundle")
    if path.endswith(".py"):
        names = {getattr(node, "name", None) for node in ast.parse(sources[path]).body}
        if function not in names:
            raise PackingError(f"{name}: entry point {entry_point!r}: {path} defines no {function}")


def pack(name: str, folder: Path = paths.SOLUTIONS) -> dict[str, Solution]:
    """Geometry -> Solution, for each geometry the solution serves. Raises PackingError."""
    manifest = read_manifest(name, folder)
    sources = gather(name, manifest, folder)
    check_imports(name, sources)
    check_entry_point(name, manifest["entry_point"], sources)
    try:
        spec = BuildSpec(
            language=manifest["language"],
            target_hardware=manifest["target_hardware"],
            entry_point=manifest["entry_point"],
            dependencies=manifest.get("dependencies", []),
            destination_passing_style=manifest.get("destination_passing_style", True),
        )
        files = [SourceFile(path=path, content=text) for path, text in sources.items()]
        return {
            geometry: Solution(
                name=packed_name(name, geometry),
                definition=definition_name(geometry),
                author=manifest["author"],
                description=manifest["description"],
                spec=spec,
                sources=files,
            )
            for geometry in served(manifest)
        }
    except ValidationError as error:
        raise PackingError(f"{name}: {MANIFEST}: {first_fault(error, 'solution')}") from error


def write(solution: Solution, path: Path) -> None:
    write_atomically(path, solution.model_dump_json(indent=2) + "\n")


def pack_here(names: list[str], folder: Path = paths.SOLUTIONS) -> list[Path]:
    """Write packed/<definition>/<name>.json for names; drop files of solutions that are gone.

    Raises PackingError. Returns the files written.
    """
    files = []
    for name in choose(names, folder):
        for solution in pack(name, folder).values():
            files.append(folder / "packed" / solution.definition / f"{name}.json")
            write(solution, files[-1])
    existing = solution_names(folder)
    for path in (folder / "packed").glob("*/*.json"):
        gone = path.stem not in existing or (path.stem in choose(names, folder) and path not in files)
        if gone:
            path.unlink()
    return files


def pack_into(names: list[str], data_set: Path, geometries: list[str]) -> list[Path]:
    """Write Solutions in the public layout below data_set. Returns the files written.

    Raises PackingError, also where data_set has no definitions/ and so is no data set.
    """
    if not (data_set / "definitions").is_dir():
        raise PackingError(f"{data_set} is not a FlashInfer-Trace data set: it has no definitions/")
    files = []
    for name in choose(names):
        for geometry, solution in pack(name).items():
            if geometry in geometries:
                folder = (
                    data_set
                    / "solutions"
                    / solution.author
                    / paths.folder_of(solution.definition)
                    / solution.definition
                )
                files.append(folder / f"{solution.name}.json")
                write(solution, files[-1])
    return files

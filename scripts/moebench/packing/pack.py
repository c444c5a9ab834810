"""Gather a solution's folder and the files of common/ that it lists into FIB Solutions, and write
them.
"""

import ast
import hashlib
import json
import re
import shutil
from collections import Counter
from functools import cache
from keyword import iskeyword
from pathlib import Path, PurePosixPath

from flashinfer_bench import BuildSpec, Solution

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.operators import catalogue
from moebench.packing import manifest as manifests
from moebench.packing import problem
from moebench.packing.flat import target_of
from moebench.packing.manifest import (
    Manifest,
    PackingError,
    read_manifest,
    read_source,
    refusal,
    solution_names,
)

SUFFIXES = (".py", ".cu", ".cuh", ".csv")
MARK = "# by moebench pack --package"
TAKEN = {
    "vllm",
    "sglang",
    "transformers",
    "torch",
    "triton",
}  # which an installed package of that name would replace
ADAPTERS = {
    "vllm.general_plugins": "for_vllm",
    "sglang.srt.plugins": "for_sglang",
}  # group of entry points -> module
PACKAGE_SIZES = (
    "num_local_experts",
    "top_k",
    "hidden_size",
    "intermediate_size",
)  # that an engine's adapter checks


def packed_name(name: str, geometry: str, first: str) -> str:
    """FIB wants names unique in a data set; only `first`, the solution's first geometry, keeps the
    plain one.

    The others add what their definition's name has beyond that one's: mine_ng1_kg1_e48.
    """
    known = catalogue.definition_name(first).split("_")
    return "_".join(
        [
            name,
            *(part for part in catalogue.definition_name(geometry).split("_") if part not in known),
        ]
    )


def files_of(manifest: Manifest) -> dict[str, Path]:
    """Path inside the bundle -> file, sorted by path; both below the solution's folder, or below
    common/.

    Those of the solution stand in for its base's with the same path. Raises PackingError for a
    missing file of common/, and for two headers of one name: sources include them by name, whatever
    their folders.
    """
    folders = [paths.SOLUTIONS / part for part in (manifest.based_on, manifest.name) if part]
    listed = [
        (part, path) for part in folders for path in part.rglob("*") if path.suffix in SUFFIXES
    ]
    found = {path.relative_to(part).as_posix(): path for part, path in listed}
    common = paths.SOLUTIONS / "common"
    for shared in manifest.common:
        path = common / shared
        if not path.is_file():
            known = ", ".join(
                sorted(p.relative_to(common).as_posix() for p in common.rglob(f"*{path.suffix}"))
            )
            raise refusal(
                manifest.name, "common", shared, f"a file of common/: {known or 'there is none'}"
            )
        found[f"common/{shared}"] = path
    headers = Counter(path.name for path in found.values() if path.suffix == ".cuh")
    if twice := [header for header, count in headers.items() if count > 1]:
        raise PackingError(f"{manifest.name}: two headers are called {twice[0]}")
    return dict(sorted(found.items()))


def origins(name: str) -> dict[str, PurePosixPath]:
    """Path inside a solution's bundle -> path in the repository. Raises PackingError."""
    files = files_of(read_manifest(name))
    return {
        packed: PurePosixPath("solutions", file.relative_to(paths.SOLUTIONS))
        for packed, file in files.items()
    }


# results are held against the sources as they are now: a process packs the same files many times
@cache
def outline(text: str) -> tuple[set[str], list[ast.ImportFrom]]:
    """Of a Python file: the names of its functions and classes, and its relative imports."""
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    return {node.name for node in tree.body if hasattr(node, "name")}, imports


def defined_names(name: str, sources: dict[str, str]) -> dict[str, set[str]]:
    """Python file -> what it defines. Raises PackingError for what cannot be parsed, or imports
    what is not packed.
    """
    modules = {
        PurePosixPath(path).with_suffix("").parts for path in sources if path.endswith(".py")
    }
    folders, found = {module[:n] for module in modules for n in range(len(module))}, {}
    for path, text in sources.items():
        if not text:
            raise PackingError(f"{name}: {path}: got an empty file, want source text")
        if not path.endswith(".py"):
            continue
        try:
            found[path], imports = outline(text)
        except SyntaxError as error:
            raise PackingError(f"{name}: {path}:{error.lineno}: {error.msg}") from error
        for node in imports:
            place = f"{name}: {path}:{node.lineno}"
            if node.level > len(PurePosixPath(path).parts):
                raise PackingError(f"{place}: relative import leaves the bundle")
            target = target_of(node, path)
            of_folder = (
                target in folders and target not in modules
            )  # `from .common.triton import gemm1` names modules
            for module in (
                [(*target, alias.name) for alias in node.names] if of_folder else [target]
            ):
                if module not in modules:
                    raise PackingError(
                        f"{place}: imports {'/'.join(module)}.py, which is not packed"
                    )
    return found


def pack(name: str) -> dict[str, Solution]:
    """Geometry -> Solution, for each that the solution serves. Raises PackingError for whatever its
    folder holds.
    """
    try:
        return pack_manifest(read_manifest(name))
    except UserError:
        raise
    except Exception as error:  # nobody's folder takes the others down
        raise PackingError(f"{name}: {type(error).__name__}: {error}".splitlines()[0]) from error


def pack_manifest(manifest: Manifest) -> dict[str, Solution]:
    """As `pack`. Raises PackingError, and whatever Python, pydantic or a table's rows raise."""
    name = manifest.name
    gathered, found = (
        {path: read_source(name, file) for path, file in files_of(manifest).items()},
        {},
    )
    defined = defined_names(
        name, gathered
    )  # once: what is a definition's own differs in numbers alone
    for geometry in manifest.definitions:
        sources = [
            {"path": path, "content": problem.source(path, geometry, text)}
            for path, text in gathered.items()
        ]
        form = catalogue.form(geometry)
        kind = f"{form}_" if form in ("renorm", "routed", "mxfp4") else ""
        key = (
            f"{kind}entry_point" if getattr(manifest, f"{kind}entry_point") else "entry_point"
        )  # of its interface
        entry_point = checked_entry_point(manifest, key, defined)
        spec = manifest.model_dump(include=BuildSpec.model_fields.keys()) | {
            "entry_point": entry_point
        }
        found[geometry] = Solution(
            name=packed_name(name, geometry, manifest.definitions[0]),
            definition=catalogue.definition_name(geometry),
            author=manifest.author,
            description=manifest.description,
            spec=BuildSpec(**spec),
            sources=sources,
        )
    return found


def pack_all(names: list[str]) -> tuple[dict[str, dict[str, Solution]], list[str]]:
    """Name -> as `pack`, of these solutions or of all; and for each of all that cannot be packed a
    line that says why.

    Raises UserError for an unknown name, PackingError for one of `names` that cannot be packed.
    """
    if names:
        return {name: pack(name) for name in manifests.choose(names)}, []
    found, left_out = {}, []
    for name in solution_names():
        try:
            found[name] = pack(name)
        except PackingError as error:
            left_out.append(str(error))
    return found, left_out


def checked_entry_point(manifest: Manifest, key: str, defined: dict[str, set[str]]) -> str:
    """The manifest's value for this key. Raises PackingError where it names no function of a packed
    file.
    """
    value = getattr(manifest, key)
    path, *function = value.split("::")
    if len(function) != 1 or function[0] not in defined.get(path, ()):
        raise refusal(
            manifest.name,
            key,
            value,
            f"FILE::FUNCTION that one of these defines: {', '.join(defined)}",
        )
    return value


def pack_here(names: list[str]) -> list[Path]:
    """Write packed/<definition>/<name>.json of names, or a new packed/ of all that can be packed.
    Returns the files.

    Raises as `pack_all`.
    """
    folder, (packed, _) = paths.SOLUTIONS / "packed", pack_all(names)
    if not names:
        shutil.rmtree(folder, ignore_errors=True)
    files = {
        folder / of.definition / f"{name}.json": of
        for name, served in packed.items()
        for of in served.values()
    }
    for path, solution in files.items():
        write_atomically(path, solution.model_dump_json(indent=2) + "\n")
    return list(files)


def pack_packages(names: list[str], parent: Path, geometries: list[str]) -> list[Path]:
    """Write parent/<packed name>/, a Python package of each solution's packed sources that exports
    its function as run.

    Where there is a function for tokens in bf16, that is run_bf16; of a routed definition with the
    sizes and solutions/engines/ beside it. pip installs parent. geometries: [] for each solution's
    first. Returns the folders. Raises as `pack_all`, and UserError where one exists (older sources
    would be compiled along), none of these is served, or parent's name is none that Python imports.
    """
    name = parent.resolve().name
    if (
        not re.fullmatch("[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?", name)
        or iskeyword(name)
        or name.lower() in TAKEN
    ):
        raise UserError(
            f"--package: got {parent}, want a folder whose name Python imports and pip installs as new"
        )
    if (file := parent / "pyproject.toml").exists() and not file.read_text(
        encoding="utf-8"
    ).startswith(MARK):
        raise UserError(f"--package: {file} is not of this command; name another folder")
    packages = {}  # folder -> what is packed, its geometry
    for name, packed in pack_all(names)[0].items():
        wanted = [key for key in packed if key in geometries] if geometries else list(packed)[:1]
        if not wanted:
            raise UserError(
                f"--definition: got {', '.join(geometries)}, want of {name}'s: {', '.join(packed)}"
            )
        packages |= {parent / packed[key].name: (packed[key], key) for key in wanted}
    if taken := [path for path in packages if path.exists()]:
        raise UserError(f"--package: {taken[0]} exists; remove it, or name another folder")
    for path, (solution, geometry) in packages.items():
        for source in solution.sources:
            write_atomically(path / source.path, source.content)
        head = f"{solution.name}: packed source {solution.hash()}, by `moebench pack --package`."
        exported = [export(solution.spec.entry_point, "run")]
        entry_file, function = solution.spec.entry_point.split("::")
        (text,) = (source.content for source in solution.sources if source.path == entry_file)
        if found := f"{function}_bf16" in outline(text)[0]:
            exported.append(export(f"{solution.spec.entry_point}_bf16", "run_bf16"))
        if found and geometry in catalogue.ROUTED:
            sizes = {key: catalogue.GEOMETRIES[geometry][key] for key in PACKAGE_SIZES}
            exported.append(f'\nDEFINITION = "{solution.definition}"\nSIZES = {sizes}\n')
            for adapter in paths.ENGINES.glob("*.py"):
                write_atomically(path / adapter.name, adapter.read_text(encoding="utf-8"))
        write_atomically(path / "__init__.py", f'"""{head}"""\n\n{"".join(exported)}')
    for made in (parent / "build").glob("*") if file.exists() else ():  # by pip, of older sources
        if made.name == "lib" or made.name.startswith("bdist."):
            shutil.rmtree(made, ignore_errors=True)
    write_atomically(file, project(parent))
    return list(packages)


def project(parent: Path) -> str:
    """The pyproject.toml of a folder with packages; in their adapters' groups engines look for
    plugins.
    """
    name, made = parent.resolve().name, sorted(path.parent for path in parent.glob("*/__init__.py"))
    folders = [
        folder
        for path in made
        for folder in (path, *path.rglob("*/"))
        if folder.name != "__pycache__"
    ]
    packages = [name, *(".".join([name, *folder.relative_to(parent).parts]) for folder in folders)]
    version = hashlib.sha1(
        b"".join((path / "__init__.py").read_bytes() for path in made)
    ).hexdigest()[:8]
    needs = ["apache-tvm-ffi", "ninja"] if [*parent.glob("*/common/host/build_library.py")] else []
    lines = [
        MARK,
        "[project]",
        f'name = "{name}"',
        f'version = "1+{version}"',
        f"dependencies = {json.dumps(needs)}",
    ]
    for group, adapter in ADAPTERS.items():
        found = [path.name for path in made if (path / f"{adapter}.py").exists()]
        lines += [
            f'[project.entry-points."{group}"]',
            *(f'{at} = "{name}.{at}.{adapter}:register"' for at in found),
        ]
    lines += [
        "[tool.setuptools]",
        f"packages = {json.dumps(packages)}",
        f'package-dir = {{ {name} = "." }}',
    ]
    return "\n".join([*lines, 'package-data = { "*" = ["*"] }', ""])


def export(entry_point: str, name: str) -> str:
    """The line that imports FILE::FUNCTION of the same package under this name."""
    file, function = entry_point.split("::")
    function += "" if function == name else f" as {name}"
    return f"from .{file.removesuffix('.py').replace('/', '.')} import {function}  # noqa: F401\n"

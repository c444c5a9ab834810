"""Pack solutions: make FIB Solutions of a folder in solutions/, one for each definition served.

solutions/mine/ with definitions = ["glm-5-ep8", "kimi-k2-ep8"] becomes the Solutions `mine`, for
the first definition, and `mine_e48_h7168`, for the other. Their sources differ only in the files
that problem.py writes, with the sizes of the layer. A run packs what it judges by `pack`, and
`moebench pack` writes files by `write_packed`.
"""

import json
from pathlib import Path, PurePosixPath

from flashinfer_bench import BuildSpec, Solution

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.operators import catalogue
from moebench.packing import manifest as manifests
from moebench.packing import problem
from moebench.packing.gather import Gathering, tree_path
from moebench.packing.manifest import (
    Manifest,
    PackingError,
    read_manifest,
    refusal,
    solution_names,
)
from moebench.packing.references import outline

# Form of a layer -> the manifest's key for a function that stands in for `entry_point` there
ENTRY_POINT_KEYS = {
    "renorm": "renorm_entry_point",
    "routed": "routed_entry_point",
    "mxfp4": "mxfp4_entry_point",
}


def pack(name: str) -> dict[str, Solution]:
    """Return layer key -> Solution, for each layer that the solution serves.

    Raises PackingError for whatever is wrong in the solution's folder.
    """
    try:
        return pack_manifest(read_manifest(name))
    except UserError:
        raise
    except Exception as error:  # of a file that cannot be parsed, for instance
        raise PackingError(
            f"{name}: {type(error).__name__}: {error}".splitlines()[0]
        ) from error


def pack_manifest(manifest: Manifest) -> dict[str, Solution]:
    """Return layer key -> Solution, as `pack`. Raises whatever parsing the files raises."""
    gathering = Gathering(manifest)
    texts = {}
    for path, file in sorted(gathering.files.items()):
        texts[path] = gathering.packed_text(file)

    solutions = {}
    for layer_key in manifest.definitions:
        sources = []
        for path, text in texts.items():
            content = problem.packed_text(path, layer_key, text)
            sources.append({"path": path, "content": content})
        # what FIB needs to build the solution for this layer
        fields = manifest.model_dump(include=set(BuildSpec.model_fields))
        fields["entry_point"] = entry_point(manifest, layer_key, texts)
        solutions[layer_key] = Solution(
            name=packed_name(manifest.name, layer_key, manifest.definitions[0]),
            definition=catalogue.definition_name(layer_key),
            author=manifest.author,
            description=manifest.description,
            spec=BuildSpec(**fields),
            sources=sources,
        )
    return solutions


def packed_name(name: str, layer_key: str, first: str) -> str:
    """Return the name of a packed solution, unique in a data set, as FIB wants it.

    first: key of the first layer that the solution serves; packed for it, the solution keeps its
    name. For another layer the name gets the parts of that definition's name which the first one's
    lacks: mine_ng1_kg1_e48.
    """
    first_parts = catalogue.definition_name(first).split("_")
    for part in catalogue.definition_name(layer_key).split("_"):
        if part not in first_parts:
            name += f"_{part}"
    return name


def entry_point(manifest: Manifest, layer_key: str, texts: dict[str, str]) -> str:
    """Return FILE::FUNCTION for a layer, as the manifest states it.

    texts: path -> packed text. Raises PackingError where no packed file has that function.
    """
    key = ENTRY_POINT_KEYS.get(catalogue.form(layer_key), "entry_point")
    if getattr(manifest, key) is None:
        key = "entry_point"
    value = getattr(manifest, key)

    path, _, function = value.partition("::")
    modules = [each for each in texts if each.endswith(".py")]
    if path not in modules or function not in outline(texts[path]).names:
        wanted = f"FILE::FUNCTION that one of these defines: {', '.join(modules)}"
        raise refusal(manifest.name, key, value, wanted)
    return value


def pack_all(names: list[str]) -> tuple[dict[str, dict[str, Solution]], list[str]]:
    """Return name -> what `pack` returns, and a line for each solution that cannot be packed.

    names: of the solutions; [] for all, of which those that cannot be packed are left out. Raises
    PackingError for a named solution that cannot be packed, and UserError for an unknown name.
    """
    if names:
        return {name: pack(name) for name in manifests.choose(names)}, []

    packed = {}
    left_out = []
    for name in solution_names():
        try:
            packed[name] = pack(name)
        except PackingError as error:
            left_out.append(str(error))
    return packed, left_out


def write_packed(names: list[str]) -> list[Path]:
    """Write packed/<definition>/<name>.json of these solutions; return the files.

    names: [] for all solutions; then all other files in packed/ are removed. Raises what `pack_all`
    raises.
    """
    folder = paths.new_solutions() / "packed"
    packed, _ = pack_all(names)

    files = []
    for name, solutions in packed.items():
        for solution in solutions.values():
            file = folder / solution.definition / f"{name}.json"
            # ASCII, for any reader
            text = json.dumps(solution.model_dump(mode="json"), indent=2)
            write_atomically(file, f"{text}\n")
            files.append(file)

    if not names:
        remove_others(folder, files)
    return files


def remove_others(folder: Path, files: list[Path]) -> None:
    """Remove all other files from packed/ (folder), and folders that are empty then."""
    others = set(folder.rglob("*")).difference(files)
    for path in sorted(others, reverse=True):  # what is in a folder before the folder
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        elif not any(path.iterdir()):
            path.rmdir()


def repository_paths(name: str) -> dict[str, PurePosixPath]:
    """Return path in a packed solution -> path in the repository. Raises PackingError."""
    files = Gathering(read_manifest(name)).files
    shown_paths = {}
    for path, file in files.items():
        shown_paths[path] = PurePosixPath("solutions", tree_path(file))
    return shown_paths

"""What is evaluated: this repository's definitions and workloads, or those of a FIB data set on
disk.
"""

from collections.abc import Collection
from pathlib import Path

from flashinfer_bench import Definition, Workload

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.names import unknown
from moebench.core.schema import read_json
from moebench.operators import catalogue, workloads
from moebench.operators.catalogue import layer_key_named

LFS = b"version https://git-lfs"  # how a pointer of Git LFS begins
LARGEST_POINTER = 1024  # bytes
EVALUATED = ("axes", "inputs", "outputs", "reference")  # fields that decide about a result


def files(root: Path) -> dict[str, Path]:
    """Return name -> file of each definition of a data set. Raises UserError for a folder that is
    none.
    """
    paths_below = (root / "definitions").rglob("*.json")
    by_name = {path.stem: path for path in sorted(paths_below)}
    if not by_name:
        raise UserError(
            f"--dataset: got {root}, want a FIB data set: it has no definitions/**/*.json"
        )
    return by_name


def names(root: Path) -> list[str]:
    """Return the definitions: those that this repository has, too, in its order, then the others.

    Raises as `files`.
    """
    ours = catalogue.by_name()
    there = ours if root == paths.ROOT else files(root)
    return sorted(there, key=[*ours, *there].index)


def definition(name: str, root: Path) -> Definition:
    """Return a definition. Raises UserError for one that is not there, and for a file that is
    none.
    """
    if root == paths.ROOT:
        return catalogue.definition(layer_key_named(name))

    there = files(root)
    if name not in there:
        raise UserError(unknown("definition", name, there))
    return read_json(there[name], Definition)


def labelled(
    name: str, root: Path = paths.ROOT, wanted: Collection[str] = ()
) -> list[tuple[str, Workload]]:
    """Return (label, workload) in the order in which they are run; this repository's with their
    tensors.

    wanted: those alone, as `workloads.named` has it; all without any. Raises UserError.
    """
    if root == paths.ROOT:
        key = catalogue.by_name()[name]
        workloads.make(key)
        all_labelled = [(workloads.label(each, key), each) for each in workloads.recorded(key)]
    else:
        there = workloads.of_data_set(name, root)
        all_labelled = [(f"{each.uuid} {workloads.size(each)}", each) for each in there]
    if not all_labelled:
        raise UserError(f"{name}: {root} has no workloads/**/{name}.jsonl")
    if not wanted:
        return all_labelled

    chosen = []
    for text in wanted:
        chosen += workloads.named(text, all_labelled)
    return [each for each in all_labelled if each in chosen]


def lacking(full: Definition, workload: Workload, root: Path) -> str | None:
    """Return which axis or tensor of a workload is not there; None where all are.

    FIB says what is wrong with one that is.
    """
    for axis in full.axes:
        if axis not in workload.axes and full.axes[axis].type == "var":
            return f"axes: {axis} is missing"

    for name, spec in workload.inputs.items():
        fault = file_fault(root / spec.path) if spec.type == "safetensors" else None
        if fault:
            return f"{name}: {spec.path} {fault}"
    return None


def file_fault(path: Path) -> str | None:
    """Return why a file of tensors cannot be read, or None."""
    if not path.is_file():
        return "is missing"
    if path.stat().st_size < LARGEST_POINTER and path.read_bytes().startswith(LFS):
        return "is a pointer of Git LFS; `git lfs pull` brings the file"
    return None


def differing(full: Definition) -> list[str]:
    """Return which fields this repository's definition of the same name has otherwise, descriptions
    left out; nothing if it has none of that name.
    """
    layer_key = catalogue.by_name().get(full.name)
    if layer_key is None:
        return []
    here = catalogue.definition(layer_key)
    return [field for field in EVALUATED if text_of(here, field) != text_of(full, field)]


def text_of(full: Definition, field: str) -> str:
    """Return a field of a definition as JSON, without the descriptions in it."""
    without_descriptions = {field: {"__all__": {"description": True}}}
    return full.model_dump_json(include={field}, exclude=without_descriptions)

"""Definitions and workloads of a FIB data set on disk: this repository, or another folder.

planning.py and profiling/ read with these what they run, submission/ what it sends.

`root` is the data set's folder. It is paths.ROOT for this repository, whose definitions the
catalogue makes, and whose workloads are written when they are first asked for.
"""

from collections.abc import Collection
from pathlib import Path

from flashinfer_bench import Definition, Workload

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.names import unknown
from moebench.core.schema import read_json
from moebench.operators import catalogue, workload_files, workloads
from moebench.operators.catalogue import layer_key_named
from moebench.operators.workloads import LabelledWorkload

LFS = b"version https://git-lfs"  # how a pointer of Git LFS begins
LARGEST_POINTER = 1024  # bytes
# a definition's fields that decide what is computed and what is right
EVALUATED = ("axes", "inputs", "outputs", "reference")


def files(root: Path) -> dict[str, Path]:
    """Return name -> file of each definition. Raises UserError for a folder that is no data set."""
    paths_below = (root / "definitions").rglob("*.json")
    by_name = {path.stem: path for path in sorted(paths_below)}
    if not by_name:
        raise UserError(
            f"--dataset: got {root}, want a FIB data set: it has no definitions/**/*.json"
        )
    return by_name


def names(root: Path) -> list[str]:
    """Return the definitions' names: first those that the catalogue has, too, in its order.

    Raises as `files`.
    """
    in_catalogue = list(catalogue.by_name())
    if root == paths.ROOT:
        return in_catalogue

    in_data_set = files(root)
    shared = [name for name in in_catalogue if name in in_data_set]
    others = [name for name in in_data_set if name not in shared]
    return shared + others


def definition(name: str, root: Path) -> Definition:
    """Return the definition of this name. Raises UserError for an unknown one, or a bad file."""
    if root == paths.ROOT:
        return catalogue.definition(layer_key_named(name))

    files_by_name = files(root)
    if name not in files_by_name:
        raise UserError(unknown("definition", name, files_by_name))
    return read_json(files_by_name[name], Definition)


def labelled(
    name: str, root: Path = paths.ROOT, wanted: Collection[str] = ()
) -> list[LabelledWorkload]:
    """Return the workloads of the definition of this name, in the order in which they are run.

    If root is this repository, missing tensors are written below blob/. wanted: names that the user
    gives to some of the workloads, as `workloads.named` takes them; without any, all are returned.
    Raises UserError for a name that no workload has, and where there are no workloads.
    """
    every_workload = []
    if root == paths.ROOT:
        layer_key = catalogue.by_name()[name]
        workload_files.make(layer_key)
        for workload in workloads.recorded(layer_key):
            label = workloads.label(workload, layer_key)
            every_workload.append(LabelledWorkload(label, workload))
    else:
        for workload in workloads.of_data_set(name, root):
            label = f"{workload.uuid} {workloads.size(workload)}"
            every_workload.append(LabelledWorkload(label, workload))
    if not every_workload:
        raise UserError(f"{name}: {root} has no workloads/**/{name}.jsonl")
    if not wanted:
        return every_workload

    chosen = []
    for user_name in wanted:
        chosen += workloads.named(user_name, every_workload)
    return [each for each in every_workload if each in chosen]


def why_not_loadable(
    definition: Definition, workload: Workload, root: Path
) -> str | None:
    """Return which axis or file a workload lacks, or None where it can be loaded.

    Whether an axis or a file that is there is right, FIB checks.
    """
    for axis in definition.axes:
        if axis not in workload.axes and definition.axes[axis].type == "var":
            return f"axes: {axis} is missing"

    for name, spec in workload.inputs.items():
        if spec.type != "safetensors":
            continue
        fault = file_fault(root / spec.path)
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


def differing_fields(definition: Definition) -> list[str]:
    """Return the EVALUATED fields in which a definition differs from this repository's of the same
    name, whatever their descriptions say; [] if the repository has none of that name.
    """
    layer_key = catalogue.by_name().get(definition.name)
    if layer_key is None:
        return []
    ours = catalogue.definition(layer_key)
    different = []
    for field in EVALUATED:
        if field_json(ours, field) != field_json(definition, field):
            different.append(field)
    return different


def field_json(definition: Definition, field: str) -> str:
    """Return a field of a definition as JSON, without the descriptions in it."""
    # "__all__": of each axis or tensor
    descriptions = {field: {"__all__": {"description": True}}}
    return definition.model_dump_json(include={field}, exclude=descriptions)

"""What is evaluated: this repository's definitions and workloads, or those of a FIB data set on
disk.
"""

from collections.abc import Iterable
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


def files(root: Path) -> dict[str, Path]:
    """Return name -> file of each definition of a data set. Raises UserError for a folder that is
    none.
    """
    by_name = {path.stem: path for path in sorted((root / "definitions").rglob("*.json"))}
    if not by_name:
        raise UserError(
            f"--dataset: got {root}, want a FIB data set: it has no definitions/**/*.json"
        )
    return by_name


def names(root: Path) -> list[str]:
    """Return the definitions: those that this repository has, too, in its order, then the others.

    Raises as `files`.
    """
    there = catalogue.by_name() if root == paths.ROOT else files(root)
    shared = [name for name in catalogue.by_name() if name in there]
    return shared + [name for name in there if name not in catalogue.by_name()]


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
    name: str, root: Path = paths.ROOT, wanted: Iterable[str] = ()
) -> list[tuple[str, Workload]]:
    """Return (label, workload) in the order in which they are run; this repository's with their
    tensors.

    wanted: those alone, as `workloads.named` has it; all without any. Raises UserError.
    """
    all_labelled = labelled_here(name) if root == paths.ROOT else labelled_in(name, root)
    if not wanted:
        return all_labelled

    chosen = []
    for text in wanted:
        chosen += workloads.named(text, all_labelled)
    return [each for each in all_labelled if each in chosen]


def labelled_here(name: str) -> list[tuple[str, Workload]]:
    layer_key = catalogue.by_name()[name]
    workloads.make(layer_key)
    return [
        (workloads.label(workload, layer_key), workload)
        for workload in workloads.recorded(layer_key)
    ]


def labelled_in(name: str, root: Path) -> list[tuple[str, Workload]]:
    there = [
        (f"{workload.uuid} {workloads.size(workload)}", workload)
        for workload in workloads.of_data_set(name, root)
    ]
    if not there:
        raise UserError(f"{name}: {root} has no workloads/**/{name}.jsonl")
    return there


def lacking(full: Definition, workload: Workload, root: Path) -> str | None:
    """Return which axis or tensor of a workload is not there; None where all are.

    FIB says what is wrong with one that is.
    """
    absent = [
        axis for axis, spec in full.axes.items() if spec.type == "var" and axis not in workload.axes
    ]
    if absent:
        return f"axes: {', '.join(absent)} is missing"

    for name, spec in workload.inputs.items():
        if spec.type != "safetensors":
            continue
        path = root / spec.path
        if not path.is_file():
            return f"{name}: {spec.path} is missing"
        if is_pointer(path):
            return f"{name}: {spec.path} is a pointer of Git LFS; `git lfs pull` brings the file"
    return None


def is_pointer(path: Path) -> bool:
    """Whether a file is what Git LFS leaves in place of it."""
    return path.stat().st_size < LARGEST_POINTER and path.read_bytes().startswith(LFS)


def differing(full: Definition) -> list[str]:
    """Return which parts this repository's definition of the same name has otherwise, descriptions
    left out; nothing if it has none of that name.
    """
    if full.name not in catalogue.by_name():
        return []

    here = comparable(catalogue.definition(catalogue.by_name()[full.name]))
    return [part for part, value in comparable(full).items() if here[part] != value]


def comparable(full: Definition) -> dict[str, object]:
    """Return what decides how a definition is evaluated: part, in words -> its value."""
    specs = [(name, spec.shape, spec.dtype) for name, spec in (full.inputs | full.outputs).items()]
    axes = {name: getattr(axis, "value", None) for name, axis in full.axes.items()}
    return {"axes": axes, "inputs or outputs": specs, "reference": full.reference}

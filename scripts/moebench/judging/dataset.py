"""What is judged: this repository's definitions and workloads, or those of a FIB data set on
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
from moebench.operators.catalogue import BY_NAME, geometry_named


def files(root: Path) -> dict[str, Path]:
    """Name -> file of each definition of a data set. Raises UserError for a folder that is none."""
    if not (found := {path.stem: path for path in sorted((root / "definitions").rglob("*.json"))}):
        raise UserError(
            f"--dataset: got {root}, want a FIB data set: it has no definitions/**/*.json"
        )
    return found


def names(root: Path) -> list[str]:
    """Of the definitions, those that this repository has, too, in its order, then the others.
    Raises as `files`.
    """
    found = BY_NAME if root == paths.ROOT else files(root)
    return [
        *(name for name in BY_NAME if name in found),
        *(name for name in found if name not in BY_NAME),
    ]


def definition(name: str, root: Path) -> Definition:
    """Raises UserError for one that is not there, and for a file that is none."""
    if root == paths.ROOT:
        return catalogue.definition(geometry_named(name))
    if name not in (found := files(root)):
        raise UserError(unknown("definition", name, found))
    return read_json(found[name], Definition)


def labelled(
    name: str, root: Path = paths.ROOT, wanted: Iterable[str] = ()
) -> list[tuple[str, Workload]]:
    """(label, workload) in the order in which they are run; this repository's with their tensors.

    wanted: those alone, as `workloads.named` has it; all without any. Raises UserError.
    """
    if root == paths.ROOT:
        geometry = BY_NAME[name]
        workloads.make(geometry)
        known = [
            (workloads.label(workload, geometry), workload)
            for workload in workloads.recorded(geometry)
        ]
    elif not (
        known := [(f"{w.uuid} {workloads.size(w)}", w) for w in workloads.of_data_set(name, root)]
    ):
        raise UserError(f"{name}: {root} has no workloads/**/{name}.jsonl")
    chosen = [one for text in wanted for one in workloads.named(text, known)]
    return [one for one in known if not wanted or one in chosen]


def lacking(full: Definition, workload: Workload, root: Path) -> str | None:
    """Which axis or tensor of a workload is not there; None where all are. FIB says what is wrong
    with one that is.
    """
    if absent := [
        axis for axis, of in full.axes.items() if of.type == "var" and axis not in workload.axes
    ]:
        return f"axes: {', '.join(absent)} is missing"
    for name, spec in workload.inputs.items():
        path = root / spec.path if spec.type == "safetensors" else None
        if path and not path.is_file():
            return f"{name}: {spec.path} is missing"
        if (
            path
            and path.stat().st_size < 1024
            and path.read_bytes().startswith(b"version https://git-lfs")
        ):
            return f"{name}: {spec.path} is a pointer of Git LFS; `git lfs pull` brings the file"
    return None


def differing(full: Definition) -> list[str]:
    """In what this repository's definition of the same name is another, if there is one;
    descriptions apart.
    """

    def told(of: Definition) -> dict:
        specs = [(name, spec.shape, spec.dtype) for name, spec in (of.inputs | of.outputs).items()]
        axes = {name: getattr(axis, "value", None) for name, axis in of.axes.items()}
        return {"axes": axes, "inputs or outputs": specs, "reference": of.reference}

    if full.name not in BY_NAME:
        return []
    ours = told(catalogue.definition(BY_NAME[full.name]))
    return [what for what, value in told(full).items() if ours[what] != value]

"""A definition in the FIB data set that a pull request goes to: which files and workloads the data
set has, and which it lacks. pull_request.py calls `check_folder` and `definition_in`.
"""

from dataclasses import dataclass
from pathlib import Path

from flashinfer_bench import Workload

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.judging import dataset
from moebench.operators.workloads import of_data_set

# fields in which definitions of one layer must agree
OTHER_LAYER = {"axes", "inputs", "outputs"}


@dataclass(frozen=True)
class DataSetDefinition:
    """A definition in a data set, once the pull request is written.

    files: of this repository, which the data set has unchanged, or will get. workloads: those of
    the data set, or this repository's if their tensors are among `files`. generated: uuids of the
    workloads whose tensors are this repository's. differences: fields in which the data set's
    definition differs from this repository's of the same name, ["description"].
    """

    files: list[Path]
    workloads: list[Workload]
    generated: list[str]
    differences: list[str]


def check_folder(into: Path) -> None:
    """Raise UserError for a folder that is neither new nor a data set, and for this repository."""
    is_data_set = (into / "definitions").is_dir()
    is_occupied = into.is_dir() and any(into.iterdir()) and not is_data_set
    if into.resolve() == paths.ROOT or is_occupied:
        raise UserError(
            f"--into: got {into}, want a new folder, or a checkout of a FlashInfer-Trace data set"
        )


def definition_in(into: Path, definition: str) -> DataSetDefinition:
    """Return the definition of a name in a data set.

    Raises UserError where it is another layer than this repository's definition of that name.
    """
    files = [paths.definition_file(definition)]
    differences = []
    present = {path.stem: path for path in (into / "definitions").rglob("*.json")}
    if definition in present and not is_in(into, files[0]):
        files = []
        differences = dataset.differing_fields(dataset.definition(definition, into))
    if OTHER_LAYER.intersection(differences):
        raise UserError(
            f"--into: {present[definition]}: it is another layer than this repository's "
            "definition of this name"
        )

    workloads, workload_files = workloads_in(into, definition)
    files += workload_files
    generated = [each.uuid for each in workloads if has_our_tensors(each, files, into)]
    return DataSetDefinition(files, workloads, generated, differences)


def workloads_in(into: Path, definition: str) -> tuple[list[Workload], list[Path]]:
    """Return a definition's workloads, and this repository's files with them and their tensors.

    If the data set has other workloads, they are the data set's, without any file.
    """
    workloads = [workload for _, workload in dataset.labelled(definition)]
    files = [paths.workload_file(definition)]
    for workload in workloads:
        files += tensor_files(workload)

    present = of_data_set(definition, into)
    if present and not all(is_in(into, path) for path in files):
        return present, []
    return workloads, files


def tensor_files(workload: Workload) -> list[Path]:
    """Return the files of this repository with a workload's tensors."""
    specs = workload.inputs.values()
    return [paths.ROOT / spec.path for spec in specs if spec.type == "safetensors"]


def has_our_tensors(workload: Workload, files: list[Path], into: Path) -> bool:
    """Return whether a data set has, or gets with `files`, this repository's tensors of a
    workload.
    """
    return all(path in files or is_in(into, path) for path in tensor_files(workload))


def repository_path(path: Path) -> Path:
    """Return a file's path in this repository, which is also its path in a data set."""
    return path.relative_to(paths.ROOT)


def is_in(into: Path, path: Path) -> bool:
    """Return whether a data set has a file of this repository, with the same content."""
    copy = into / repository_path(path)
    return path.is_file() and copy.is_file() and copy.read_bytes() == path.read_bytes()

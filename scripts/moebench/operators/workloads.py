"""The workloads of a definition: read, named, written. A line that a user has added to the file is
kept and served.
"""

import csv
import hashlib
from dataclasses import astuple, fields
from pathlib import Path

import safetensors.torch
from flashinfer_bench import Trace, Workload
from pydantic import ValidationError

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, UserError
from moebench.core.names import unknown
from moebench.core.schema import first_fault
from moebench.operators import catalogue
from moebench.operators.layers import cached, has_all_experts
from moebench.operators.operator import Case, stored_tensors
from moebench.operators.roofline import Bound, Counts


@cached
def cases_by_uuid(layer_key: str) -> dict[str, Case]:
    """Return the workloads that this repository makes for a key, in the order in which they are
    run.
    """
    return {case.uuid: case for case in catalogue.operator(layer_key).cases(layer_key)}


def size(workload: Workload) -> str:
    """Return 'T=7'; of other operators 'M=256, N=8'."""
    parts = []
    for axis, value in workload.axes.items():
        name = "T" if axis == "seq_len" else axis
        parts.append(f"{name}={value}")
    return ", ".join(parts)


def tokens(workload: Workload) -> int:
    """Return T; of an operator without it the greatest axis, which orders its workloads."""
    return workload.axes.get("seq_len", max(workload.axes.values(), default=0))


def label(workload: Workload, layer_key: str) -> str:
    """Return 'one-token T=1 offset=32', 'T=7', or the uuid of a user's workload and T.

    It is for a line of progress or a table. offset: the rank's first expert, where it has not all
    of them.
    """
    shown = size(workload)
    case = cases_by_uuid(layer_key).get(workload.uuid)
    if case is None:
        return f"{workload.uuid} {shown}"

    offset = workload.inputs.get("local_expert_offset")
    if offset is not None and not has_all_experts(catalogue.layer_sizes()[layer_key]):
        shown += f" offset={offset.value}"
    return shown if case.name.startswith("T=") else f"{case.name} {shown}"


def goes_by(shown: str, workload: Workload, name: str) -> bool:
    """Whether a user may mean this workload by `name`: its label, case, uuid, "T=7" or "7"."""
    shown_size = size(workload)
    if name in (shown_size, shown_size.removeprefix("T=")):
        return True
    return name in (shown, case_name(shown), workload.uuid)


def case_name(shown: str) -> str:
    """Return the first word of a label."""
    name, _, _ = shown.partition(" ")
    return name


def named(
    name: str, labelled: list[tuple[str, Workload]], others: str = ""
) -> list[tuple[str, Workload]]:
    """Return those that a user names: by a token count, which several may have, a uuid, a case's
    name or its label.

    labelled: labels and workloads. others: what else may be named, for the message. Raises
    UserError where there is none.
    """
    matching = [each for each in labelled if goes_by(*each, name)]
    if not matching:
        raise unknown_workload(name, labelled, others)
    return matching


def unknown_workload(name: str, labelled: list[tuple[str, Workload]], others: str) -> UserError:
    """Return the error for a name that no workload has. others: what else may be named."""
    case_names = dict.fromkeys(case_name(shown) for shown, _ in labelled)
    workloads = [workload for _, workload in labelled]
    workloads.sort(key=lambda workload: [*workload.axes.values()])
    sizes = ", ".join(dict.fromkeys(map(size, workloads)))
    listed = f"{sizes}; their uuids and names{others}"
    return UserError(unknown("workload", name, case_names, listed))


def of_data_set(definition: str, root: Path) -> list[Workload]:
    """Return a FIB data set's workloads of a definition, [] without any.

    Raises UserError for a line that is none.
    """
    workloads = []
    folder = paths.shipped(root) / "workloads"
    for file in sorted(folder.rglob(f"{definition}.jsonl")):
        workloads += [workload for workload, _ in read_lines(file, definition)]
    return workloads


def recorded(layer_key: str, root: Path = paths.ROOT) -> list[Workload]:
    """Return the workloads in a key's file, in the order in which they are run: this repository's
    and the user's own.

    Raises UserError for a missing file and a line that is no workload of the definition.
    """
    definition = catalogue.definition_name(layer_key)
    if not paths.workload_file(definition, root).exists():
        raise UserError(
            f"{layer_key}: its workloads are not written: run `moebench data {layer_key} --write`"
        )
    return of_data_set(definition, root)


def read_lines(path: Path, definition: str) -> list[tuple[Workload, str]]:
    """Return each workload with its line.

    Raises UserError that names the file and the line of what is no workload.
    """
    needs_tokens = definition in catalogue.by_name()
    text = path.read_text(encoding="utf-8")
    lines = []
    # Not splitlines: JSON may hold other line ends.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{path.name}:{number}"
        try:
            trace = Trace.model_validate_json(line)
        except ValidationError as error:
            fault = first_fault(error, "line")
            raise UserError(f"{place}: not a FIB trace: {fault}") from error

        lacks_tokens = needs_tokens and "seq_len" not in trace.workload.axes
        if trace.definition != definition or lacks_tokens:
            raise UserError(f"{place}: not a workload of {definition} with its axes")
        lines.append((trace.workload, line))
    return lines


@cached
def recorded_counts(layer_key: str) -> dict[str, Counts]:
    """Return uuid -> counts of a workload of this repository, as `make` writes them: drawing its
    routing takes seconds.
    """
    file = paths.workload_file(catalogue.definition_name(layer_key), suffix="csv")
    counts = {}
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            uuid = row.pop("uuid")
            numbers = {name: int(number) for name, number in row.items()}
            counts[uuid] = Counts(**numbers)
    return counts


def recorded_bound(definition: str, workload: Workload, root: Path | None = None) -> Bound | None:
    """Return the roofline bound of a workload of the data set at root, or None where its routing
    cannot be known.

    This repository's counts are recorded, so no blob is needed; a trace file outside any data set
    (root: None) is taken to be of this repository's workloads. All others have their routing in the
    stored tensors.
    """
    layer_key = catalogue.by_name().get(definition)
    if layer_key is None:
        return None
    root = root or paths.ROOT

    if root == paths.ROOT and workload.uuid in cases_by_uuid(layer_key):
        counts = recorded_counts(layer_key)[workload.uuid]
    else:
        counts = stored_counts(layer_key, workload, root)
    if counts is None:
        return None
    return catalogue.operator(layer_key).bound(workload.axes["seq_len"], counts, layer_key)


def stored_counts(layer_key: str, workload: Workload, root: Path) -> Counts | None:
    """Return the counts of a workload from its stored tensors, None where they lack the routing."""
    try:
        tensors = stored_tensors(workload, root)
        return catalogue.operator(layer_key).counts(workload, tensors, layer_key)
    except (ValueError, safetensors.SafetensorError):
        return None  # somebody else's tensors; FIB says what is wrong with them


def make(layer_key: str, root: Path = paths.ROOT) -> tuple[int, int]:
    """Write the workloads of a key and their counts below root; return (blobs written, blobs found
    good).

    Lines of the workload file that are not of this repository's making stay, behind those that are.
    Raises CannotRun when a generated blob differs from its recorded checksum, UserError as
    `recorded`.
    """
    return WorkloadWriter(layer_key, root).write()


class WorkloadWriter:
    """What `make` needs of one layer key: its cases, and where their files lie."""

    def __init__(self, layer_key: str, root: Path):
        self.layer_key = layer_key
        self.root = root
        self.operator = catalogue.operator(layer_key)
        self.cases = cases_by_uuid(layer_key)
        self.definition = catalogue.definition_name(layer_key)
        self.workload_file = paths.workload_file(self.definition, root)
        self.counts_file = paths.workload_file(self.definition, root, "csv")
        self.checksum_file = paths.workload_file(self.definition, root, "sha256")
        self.recorded_sums = read_checksums(self.checksum_file)

    def write(self) -> tuple[int, int]:
        """As `make`."""
        users_lines = self.users_lines()
        checksums, written = self.write_blobs()

        traces = [self.operator.record(case) for case in self.cases.values()]
        records = [trace.model_dump_json() for trace in traces]
        sums = [f"{digest}  {name}" for name, digest in checksums.items()]
        write_lines(self.workload_file, records + users_lines)
        write_lines(self.counts_file, self.counts_table(traces))
        write_lines(self.checksum_file, sums)
        return written, len(checksums) - written

    def users_lines(self) -> list[str]:
        """Return the lines of the workload file that this repository has not made, now or
        before.
        """
        if not self.workload_file.exists():
            return []

        lines = []
        for workload, line in read_lines(self.workload_file, self.definition):
            blob = paths.blob_file(self.definition, workload.uuid)
            if workload.uuid not in self.cases and blob not in self.recorded_sums:
                lines.append(line)
        return lines

    def write_blobs(self) -> tuple[dict[str, str], int]:
        """Write the cases' tensors; return blob's name -> sha256, and how many were written."""
        checksums = {}
        written = 0
        for case in self.cases.values():
            name = paths.blob_file(self.definition, case.uuid)
            path = self.root / name
            wanted = self.recorded_sums.get(name)
            if path.exists() and sha256(path.read_bytes()) == wanted:
                checksums[name] = wanted
                continue

            content = safetensors.torch.save(self.operator.tensors(case))
            digest = sha256(content)
            if wanted and digest != wanted:
                raise CannotRun(
                    f"{name}: generated sha256 {digest}, recorded is {wanted}. If the generator "
                    f"was changed on purpose, delete {self.checksum_file.name}."
                )
            write_atomically(path, content)
            checksums[name] = digest
            written += 1
        return checksums, written

    def counts_table(self, traces: list[Trace]) -> list[str]:
        """Return lines of CSV: uuid and counts of each workload."""
        names = [field.name for field in fields(Counts)]
        lines = [",".join(["uuid", *names])]
        for trace in traces:
            stored = stored_tensors(trace.workload, self.root)
            counts = self.operator.counts(trace.workload, stored, self.layer_key)
            numbers = [str(number) for number in astuple(counts)]
            lines.append(",".join([trace.workload.uuid, *numbers]))
        return lines


def write_lines(file: Path, lines: list[str]) -> None:
    write_atomically(file, "".join(f"{line}\n" for line in lines))


def read_checksums(file: Path) -> dict[str, str]:
    """Return blob's name -> sha256, as `sha256sum` writes them; {} without the file."""
    if not file.exists():
        return {}
    sums = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        digest, name = line.split()
        sums[name] = digest
    return sums


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

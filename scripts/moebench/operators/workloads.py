"""The workloads of a definition: read, named, written. A line that a user has added to the file is
kept and served.
"""

import csv
import hashlib
from dataclasses import astuple, fields
from functools import cache
from pathlib import Path

import safetensors.torch
from flashinfer_bench import Trace, Workload
from pydantic import ValidationError

from definitions.layers import has_all_experts
from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, UserError
from moebench.core.names import unknown
from moebench.core.schema import first_fault
from moebench.operators.case import Case, stored_tensors
from moebench.operators.catalogue import BY_NAME, GEOMETRIES, definition_name, operator
from moebench.operators.roofline import Bound, Counts


@cache
def cases_by_uuid(geometry: str) -> dict[str, Case]:
    """The workloads that this repository makes for a geometry, in the order in which they are
    run.
    """
    return {case.uuid: case for case in operator(geometry).cases(geometry)}


def size(workload: Workload) -> str:
    """'T=7'; of other operators 'M=256, N=8'."""
    return ", ".join(
        f"{'T' if axis == 'seq_len' else axis}={value}" for axis, value in workload.axes.items()
    )


def tokens(workload: Workload) -> int:
    """T; of an operator without it the greatest axis, which orders its workloads."""
    return workload.axes.get("seq_len", max(workload.axes.values(), default=0))


def label(workload: Workload, geometry: str) -> str:
    """For a line of progress or a table: 'one-token T=1 offset=32', 'T=7', or the uuid of a user's
    workload and T.

    offset: the rank's first expert, where it has not all of them.
    """
    case, shown = cases_by_uuid(geometry).get(workload.uuid), size(workload)
    if case is None:
        return f"{workload.uuid} {shown}"
    if "local_expert_offset" in workload.inputs and not has_all_experts(GEOMETRIES[geometry]):
        shown += f" offset={workload.inputs['local_expert_offset'].value}"
    return shown if case.name.startswith("T=") else f"{case.name} {shown}"


def named(
    text: str, known: list[tuple[str, Workload]], others: str = ""
) -> list[tuple[str, Workload]]:
    """Those that a user names: by a token count, which several may have, a uuid, a case's name or
    its label.

    known: labels and workloads. others: what else may be named, for the message. Raises UserError
    where there is none.
    """
    short = {shown: shown.partition(" ")[0] for shown, _ in known}
    spelt = {
        shown: {shown, short[shown], w.uuid, size(w), size(w).removeprefix("T=")}
        for shown, w in known
    }
    if not (found := [one for one in known if text in spelt[one[0]]]):
        sizes = ", ".join(
            dict.fromkeys(
                size(w) for _, w in sorted(known, key=lambda one: [*one[1].axes.values()])
            )
        )
        raise UserError(
            unknown("workload", text, short.values(), f"{sizes}; their uuids and names{others}")
        )
    return found


def of_data_set(definition: str, root: Path) -> list[Workload]:
    """A FIB data set's workloads of a definition, [] without any. Raises UserError for a line that
    is none.
    """
    files = sorted((paths.shipped(root) / "workloads").rglob(f"{definition}.jsonl"))
    return [workload for file in files for workload, _ in read_lines(file, definition)]


def recorded(geometry: str, root: Path = paths.ROOT) -> list[Workload]:
    """The workloads in a geometry's file, in the order in which they are run: this repository's and
    the user's own.

    Raises UserError for a missing file and a line that is no workload of the definition.
    """
    definition = definition_name(geometry)
    if not paths.workload_file(definition, root).exists():
        raise UserError(
            f"{geometry}: its workloads are not written: run `moebench data {geometry} --write`"
        )
    return of_data_set(definition, root)


def read_lines(path: Path, definition: str) -> list[tuple[Workload, str]]:
    """Each workload with its line. Raises UserError that names the file and the line of what is no
    workload.
    """
    found = []
    for at, line in enumerate(
        path.read_text(encoding="utf-8").split("\n"), 1
    ):  # JSON may hold other line ends
        if not line.strip():
            continue
        try:
            trace = Trace.model_validate_json(line)
        except ValidationError as error:
            raise UserError(
                f"{path.name}:{at}: not a FIB trace: {first_fault(error, 'line')}"
            ) from error
        if trace.definition != definition or (
            definition in BY_NAME and "seq_len" not in trace.workload.axes
        ):
            raise UserError(f"{path.name}:{at}: not a workload of {definition} with its axes")
        found.append((trace.workload, line))
    return found


@cache
def recorded_counts(geometry: str) -> dict[str, Counts]:
    """uuid -> counts of a workload of this repository, as `make` writes them: drawing its routing
    takes seconds.
    """
    with paths.workload_file(definition_name(geometry), suffix="csv").open(
        encoding="utf-8"
    ) as file:
        return {
            row.pop("uuid"): Counts(**{key: int(n) for key, n in row.items()})
            for row in csv.DictReader(file)
        }


def recorded_bound(definition: str, workload: Workload, root: Path | None = None) -> Bound | None:
    """The roofline bound of a workload of the data set at root, or None where its routing cannot be
    known.

    This repository's counts are recorded, so no blob is needed; a trace file outside any data set
    (root: None) is taken to be of this repository's workloads. All others have their routing in the
    stored tensors.
    """
    geometry = BY_NAME.get(definition)
    if geometry is None:
        return None
    family = operator(geometry)
    if root in (None, paths.ROOT) and workload.uuid in cases_by_uuid(geometry):
        counts = recorded_counts(geometry)[workload.uuid]
    else:
        try:
            counts = family.counts(workload, stored_tensors(workload, root or paths.ROOT), geometry)
        except (
            ValueError,
            safetensors.SafetensorError,
        ):  # somebody else's tensors; FIB says what is wrong with them
            return None
    return counts and family.bound(workload.axes["seq_len"], counts, geometry)


def make(geometry: str, root: Path = paths.ROOT) -> tuple[int, int]:
    """Write the workloads of a geometry and their counts below root; return (blobs written, blobs
    found good).

    Lines of the workload file that are not of this repository's making stay, behind those that are.
    Raises CannotRun when a generated blob differs from its recorded checksum, UserError as
    `recorded`.
    """
    family, definition, cases = (
        operator(geometry),
        definition_name(geometry),
        cases_by_uuid(geometry),
    )
    workload_file, counts_file, checksum_file = (
        paths.workload_file(definition, root, suffix) for suffix in ("jsonl", "csv", "sha256")
    )
    sums = checksum_file.read_text(encoding="utf-8").splitlines() if checksum_file.exists() else []
    known = {name: digest for digest, name in (line.split() for line in sums)}
    kept = []
    for workload, line in read_lines(workload_file, definition) if workload_file.exists() else []:
        if (
            workload.uuid not in cases and paths.blob_file(definition, workload.uuid) not in known
        ):  # made by no case
            kept.append(line)
    checksums, blobs_written = {}, 0
    for case in cases.values():
        name = paths.blob_file(definition, case.uuid)
        path = root / name
        if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == known.get(name):
            checksums[name] = known[name]
            continue
        content = safetensors.torch.save(family.tensors(case))
        checksums[name] = hashlib.sha256(content).hexdigest()
        if known.get(name, checksums[name]) != checksums[name]:
            got = f"{name}: generated sha256 {checksums[name]}, recorded is {known[name]}"
            raise CannotRun(
                f"{got}. If the generator was changed on purpose, delete {checksum_file.name}."
            )
        write_atomically(path, content)
        blobs_written += 1

    traces = [family.record(case) for case in cases.values()]
    counted = [["uuid", *(field.name for field in fields(Counts))]]
    for workload in (trace.workload for trace in traces):
        counts = family.counts(workload, stored_tensors(workload, root), geometry)
        counted.append([workload.uuid, *map(str, astuple(counts))])
    write_atomically(
        workload_file,
        "".join(f"{line}\n" for line in [*(t.model_dump_json() for t in traces), *kept]),
    )
    write_atomically(counts_file, "".join(f"{','.join(row)}\n" for row in counted))
    write_atomically(
        checksum_file, "".join(f"{digest}  {name}\n" for name, digest in checksums.items())
    )
    return blobs_written, len(cases) - blobs_written

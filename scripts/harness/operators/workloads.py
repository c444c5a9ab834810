"""Workload records and tensor files of a definition, from its cases."""

import csv
import hashlib
from dataclasses import astuple, fields
from functools import cache
from pathlib import Path

import safetensors.torch
import torch
from flashinfer_bench import Trace, Workload
from flashinfer_bench.data import load_jsonl_file

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.core.errors import CannotRun, UserError
from harness.core.names import unknown
from harness.operators.case import Case, stored_tensors
from harness.operators.catalogue import BY_NAME, definition_name, operator
from harness.operators.roofline import Bound, Counts


@cache
def cases_by_uuid(geometry: str) -> dict[str, Case]:
    """The workloads of a geometry in the order in which they are run."""
    return {case.uuid: case for case in operator(geometry).cases(geometry)}


def named(text: str, geometry: str, others: str = "") -> list[Case]:
    """The cases that a user names: by a token count, which several may have, a uuid, a case's name or its label.

    others: what else may be named where this is called, for the message. Raises UserError where there is none.
    """
    cases = cases_by_uuid(geometry).values()
    found = [c for c in cases if text in (f"{c.seq_len}", f"T={c.seq_len}", c.uuid, c.name, c.label)]
    if not found:
        lengths = ", ".join(map(str, sorted({case.seq_len for case in cases})))
        names = [case.name for case in cases]
        listed = f"T = {lengths}; their uuids and names{others}"
        raise UserError(unknown("workload", text, names, listed))
    return found


def written(path: Path, geometry: str) -> Path:
    """Raises UserError where a geometry's file is not there."""
    if not path.exists():
        raise UserError(f"{geometry}: its workloads are not written: run `moebench workloads {geometry}`")
    return path


@cache
def recorded_counts(geometry: str) -> dict[str, Counts]:
    """uuid -> counts of a workload of this repository, as `make` writes them: drawing its routing takes seconds."""
    with written(paths.counts_file(definition_name(geometry)), geometry).open() as file:
        return {row.pop("uuid"): Counts(**{key: int(n) for key, n in row.items()}) for row in csv.DictReader(file)}


def generated_bound(geometry: str, uuid: str) -> Bound:
    """The roofline bound of a workload of this repository; needs no blob."""
    seq_len = cases_by_uuid(geometry)[uuid].seq_len
    return operator(geometry).bound(seq_len, recorded_counts(geometry)[uuid], geometry)


def bound_of(workload: Workload, stored: dict[str, torch.Tensor], geometry: str) -> Bound | None:
    """The roofline bound of a workload with these stored tensors, or None where they lack the routing."""
    family = operator(geometry)
    counts = family.counts(workload, stored, geometry)
    return counts and family.bound(workload.axes["seq_len"], counts, geometry)


def recorded_bound(definition: str, workload: Workload, root: Path | None) -> Bound | None:
    """The bound of a workload of a data set, or None where its routing cannot be known.

    This repository's counts are recorded, so no blob is needed; a trace file outside any data set is taken to
    be of this repository's workloads. Another data set has a routing of its own, in its blobs.
    """
    geometry = BY_NAME.get(definition)
    if geometry is None:
        return None
    if root in (None, paths.ROOT):
        return generated_bound(geometry, workload.uuid) if workload.uuid in cases_by_uuid(geometry) else None
    return bound_of(workload, stored_tensors(workload, root), geometry)


def recorded(geometry: str) -> list[Workload]:
    """The workloads of a geometry as FIB reads them, in the order in which they are run; `make` writes them."""
    traces = load_jsonl_file(Trace, written(paths.workload_file(definition_name(geometry)), geometry))
    return [trace.workload for trace in traces]


def make(geometry: str, root: Path = paths.ROOT) -> tuple[int, int]:
    """Write the workloads of a geometry and their counts below root; return (blobs written, blobs found good).

    Raises CannotRun when a generated blob differs from its recorded checksum.
    """
    family, definition, cases = operator(geometry), definition_name(geometry), cases_by_uuid(geometry).values()
    checksum_file = paths.checksum_file(definition, root)
    lines = checksum_file.read_text().splitlines() if checksum_file.exists() else []
    recorded = {name: digest for digest, name in (line.split() for line in lines)}
    checksums, written = {}, 0
    for case in cases:
        name = paths.blob_file(definition, case.uuid)
        path = root / name
        if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == recorded.get(name):
            checksums[name] = recorded[name]
            continue
        content = safetensors.torch.save(family.tensors(case))
        checksums[name] = hashlib.sha256(content).hexdigest()
        if recorded.get(name, checksums[name]) != checksums[name]:
            raise CannotRun(
                f"{name}: generated sha256 {checksums[name]}, recorded is {recorded[name]}. If the "
                f"generator was changed on purpose, delete {checksum_file.name}."
            )
        write_atomically(path, content)
        written += 1

    traces = [family.record(case) for case in cases]
    counted = [["uuid", *(field.name for field in fields(Counts))]]
    for workload in (trace.workload for trace in traces):
        counts = family.counts(workload, stored_tensors(workload, root), geometry)
        counted.append([workload.uuid, *map(str, astuple(counts))])
    write_atomically(paths.workload_file(definition, root), "".join(f"{t.model_dump_json()}\n" for t in traces))
    write_atomically(paths.counts_file(definition, root), "".join(f"{','.join(row)}\n" for row in counted))
    write_atomically(checksum_file, "".join(f"{digest}  {name}\n" for name, digest in checksums.items()))
    return written, len(cases) - written

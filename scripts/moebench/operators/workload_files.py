"""Write the workloads that this repository makes, with their tensors: what `moebench data --write`
does, and the first run of a definition.

Four things are written for a layer key:

    workloads/moe/<definition>.jsonl    a FIB workload a line, and below them the user's own lines
    workloads/moe/<definition>.csv      uuid,rows,tokens,active: the counts that bounds need
    workloads/moe/<definition>.sha256   checksums of the tensors, as `sha256sum -c` reads them
    blob/workloads/moe/<definition>/    a safetensors file a workload; not in git
"""

import hashlib
from pathlib import Path

import safetensors.torch

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun
from moebench.operators import catalogue
from moebench.operators.operator import stored_tensors
from moebench.operators.workloads import cases_by_uuid, read_lines


def make(layer_key: str, root: Path = paths.ROOT) -> tuple[int, int]:
    """Write a key's workloads below root; return (blobs written, blobs that were there already).

    A blob is the file of a workload's tensors. The user's own lines stay in the workload file,
    below those of this repository. Raises CannotRun when a generated blob differs from its recorded
    checksum, UserError for a line that is no workload.
    """
    return WorkloadWriter(layer_key, root).write()


class WorkloadWriter:
    """Writes the files of one layer key, below the root of a data set."""

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
        """Return what `make` returns."""
        users_lines = self.users_lines()
        checksums, written = self.write_blobs()

        traces = [self.operator.record(case) for case in self.cases.values()]
        our_lines = [trace.model_dump_json() for trace in traces]
        write_lines(self.workload_file, our_lines + users_lines)

        lines = ["uuid,rows,tokens,active"]
        for trace in traces:
            stored = stored_tensors(trace.workload, self.root)
            counts = self.operator.counts(trace.workload, stored, self.layer_key)
            numbers = f"{counts.rows},{counts.tokens},{counts.active}"
            lines.append(f"{trace.workload.uuid},{numbers}")
        write_lines(self.counts_file, lines)
        checksum_lines = [f"{digest}  {name}" for name, digest in checksums.items()]
        write_lines(self.checksum_file, checksum_lines)
        return written, len(checksums) - written

    def users_lines(self) -> list[str]:
        """Return the lines of the workload file that this repository has made neither now nor
        before, when its checksum was recorded.
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
        """Write the blobs that are missing or differ from their recorded checksum; return blob's
        name -> sha256 of all, and how many were written.
        """
        checksums = {}
        written = 0
        for case in self.cases.values():
            name = paths.blob_file(self.definition, case.uuid)
            path = self.root / name
            recorded = self.recorded_sums.get(name)
            if path.exists() and sha256(path.read_bytes()) == recorded:
                checksums[name] = recorded
                continue

            content = safetensors.torch.save(self.operator.tensors(case))
            digest = sha256(content)
            if recorded not in (None, digest):
                raise CannotRun(
                    f"{name}: generated sha256 {digest}, recorded is {recorded}. If the generator "
                    f"was changed on purpose, delete {self.checksum_file.name}."
                )
            write_atomically(path, content)
            checksums[name] = digest
            written += 1
        return checksums, written


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

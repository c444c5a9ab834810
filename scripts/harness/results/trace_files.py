"""Read trace files of any origin, and keep the traces of this project's runs in theirs.

A trace set is a folder in FlashInfer-Trace's layout; a folder of JSONL files or one such file will do too.
"""

from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path

from filelock import FileLock
from flashinfer_bench import Trace, Workload
from flashinfer_bench.data import load_jsonl_file
from flashinfer_bench.env import get_fib_cache_path
from pydantic import ValidationError

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.core.errors import UserError
from harness.core.provenance import Provenance, of_trace
from harness.core.schema import first_fault


@dataclass(frozen=True)
class Recorded:
    """A trace with an evaluation, where it is written ("file:line"), and the data set that holds it, if any."""

    trace: Trace
    place: str
    root: Path | None

    @cached_property
    def provenance(self) -> Provenance:
        return of_trace(self.trace)


def root_of(path: Path) -> Path | None:
    """The data set that path is or lies in: the nearest folder with definitions/; None without one."""
    folders = [path, *path.parents]
    return next((folder for folder in folders if (folder / "definitions").is_dir()), None)


def read(given: list[Path]) -> tuple[list[Recorded], list[str]]:
    """Every trace with an evaluation below the given paths, and a warning for each line that is not a FIB trace.

    A file that is given twice counts once. Raises UserError for a path without traces.
    """
    found, warnings, files = [], [], {}
    for path in given:
        if not (below := paths.files_below(path, "traces", "*.jsonl")):
            raise UserError(f"{path}: no traces, want a trace set, a folder of *.jsonl, or such a file")
        files |= {file.resolve(): file for file in below if file.resolve() not in files}
    for resolved, file in files.items():
        root = root_of(resolved)
        # Paths inside this repository are shown alike wherever it lies.
        shown = resolved.relative_to(paths.ROOT).as_posix() if root == paths.ROOT else str(file)
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            try:
                trace = Trace.model_validate_json(line)
            except ValidationError as error:
                warnings.append(f"{shown}:{number}: left out: not a FIB trace: {first_fault(error, 'line')}")
                continue
            if trace.solution is not None and trace.evaluation is not None:
                found.append(Recorded(trace, f"{shown}:{number}", root))
    if not found:
        listed = ", ".join(map(str, given))
        broken = f"; {len(warnings)} broken, the first is {warnings[0]}" if warnings else ""
        raise UserError(f"no traces with an evaluation in {listed}{broken}")
    return found, warnings


def recorded_workloads(definition: str, root: Path) -> list[Workload]:
    """A data set's workloads of a definition; [] where it keeps none or they cannot be read."""
    files = sorted((root / "workloads").rglob(f"{definition}.jsonl"))
    try:
        return [trace.workload for file in files for trace in load_jsonl_file(Trace, file)]
    except ValueError:
        return []  # those in the traces are enough for a comparison


def load(path: Path) -> list[Trace]:
    """Traces in path, in its order; [] without a file. Raises ValueError for a broken line."""
    return load_jsonl_file(Trace, path) if path.is_file() else []


def merge(path: Path, traces: list[Trace]) -> None:
    """Add traces to path, in which the newest of each experiment and protocol stays, if it is of the newest source.

    An experiment is a solution on a workload, on one machine, at one tolerance: a short run leaves the long run of the
    same source alone, and a run of an edited source replaces both. Safe among processes.
    """
    locks = get_fib_cache_path() / "trace_locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{path.name}.lock"):
        kept, newest = {}, {}
        for trace in sorted([*load(path), *traces], key=lambda trace: trace.evaluation.timestamp):
            by, workload = of_trace(trace), trace.workload
            experiment = trace.solution, workload.axes["seq_len"], workload.uuid, by.hardware, by.tolerance or ""
            newest[experiment] = source = by.source_fingerprint or by.source_sha1
            kept[*experiment, by.protocol or ""] = trace, source
        current = [trace for key, (trace, by) in sorted(kept.items(), key=itemgetter(0)) if by == newest[key[:-1]]]
        write_atomically(path, "".join(f"{trace.model_dump_json()}\n" for trace in current))

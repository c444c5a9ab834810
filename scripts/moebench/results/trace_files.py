"""Read files of traces, a trace a line, and add a run's traces to a file.

`read` is for comparisons (measurements.py, against.py, `moebench submit`): a user names a data set
in FlashInfer-Trace's layout, whose traces are the files below traces/, or a folder of JSONL files,
or such a file. FIB's `TraceSet.from_path` reads a data set as a whole, without saying from which
line a trace is, and raises at the first broken line.

`read_saved` and `merge` are for the files that `moebench run` writes.
"""

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from flashinfer_bench import Trace
from flashinfer_bench.env import get_fib_cache_path
from pydantic import ValidationError

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.core.schema import first_fault
from moebench.results.any_trace import AnyTrace
from moebench.results.trace_rows import of_newest_source, rows_from

# columns that are alike in the traces of a solution on a workload, on one machine, at one tolerance
EXPERIMENT = ["solution", "tokens", "uuid", "hardware", "tolerance_text"]


@dataclass(frozen=True)
class Recorded:
    """A trace with an evaluation, and where it was read.

    place: "file:line". root: the data set that holds the file, if any.
    """

    trace: AnyTrace
    place: str
    root: Path | None


def read(wanted: list[Path]) -> tuple[list[Recorded], list[str]]:
    """Return every trace with an evaluation below these paths, and a warning for each broken line.

    A file that is named twice counts once. Raises UserError for a path without trace files, and
    where none of the files has a trace with an evaluation.
    """
    recorded = []
    warnings = []
    for file in trace_files_below(wanted):
        traces, faults = read_file(file)
        recorded += traces
        warnings += faults

    if not recorded:
        message = f"no traces with an evaluation in {', '.join(map(str, wanted))}"
        raise UserError("; ".join([message, *warnings[:1]]))
    return recorded, warnings


def trace_files_below(wanted: list[Path]) -> list[Path]:
    """Return the trace files below these paths, each once.

    Raises UserError for a path that has none.
    """
    by_resolved_path = {}
    for path in wanted:
        files = paths.files_below(path, "traces", "*.jsonl")
        if not files:
            raise UserError(
                f"{path}: no traces, want a trace set, a folder of *.jsonl, or such a file"
            )
        for file in files:
            by_resolved_path.setdefault(file.resolve(), file)
    return list(by_resolved_path.values())


def read_file(file: Path) -> tuple[list[Recorded], list[str]]:
    """Return a file's traces with an evaluation, and a warning for each line that is no trace."""
    folders = file.resolve().parents
    data_sets = [folder for folder in folders if (folder / "definitions").is_dir()]
    root = data_sets[0] if data_sets else None  # the nearest

    name = str(file)
    if root == paths.ROOT:  # shown alike wherever this repository lies
        name = file.resolve().relative_to(root).as_posix()

    recorded = []
    warnings = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{name}:{number}"
        try:
            trace = AnyTrace.model_validate_json(line)
        except ValidationError as error:
            warnings.append(
                f"{place}: left out: not a FIB trace: {first_fault(error, 'line')}"
            )
            continue
        if trace.solution is not None and trace.evaluation is not None:
            recorded.append(Recorded(trace, place, root))
    return recorded, warnings


def read_saved(path: Path) -> list[AnyTrace]:
    """Return the traces that runs have saved in a file, none where there is no file.

    Raises ValueError for a line that is no trace, and for a trace without an evaluation.
    """
    if not path.is_file():
        return []

    lines = path.read_bytes().splitlines()
    traces = [AnyTrace.model_validate_json(line) for line in lines if line.strip()]
    if any(trace.evaluation is None for trace in traces):
        raise ValueError(f"{path}: has workloads without an evaluation")
    return traces


def merge(path: Path, traces: list[Trace]) -> None:
    """Add a run's traces to a file, which then holds the newest source's (`keep_newest_source`).

    Several processes may call this at once: each waits for a lock.
    """
    locks = get_fib_cache_path() / "trace_locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{path.name}.lock"):
        remaining = keep_newest_source([*read_saved(path), *traces])
        # as keys of a dict, so that a trace which is in the file already is there once
        lines = dict.fromkeys(f"{trace.model_dump_json()}\n" for trace in remaining)
        write_atomically(path, "".join(lines))


def keep_newest_source(traces: list[Trace]) -> list[Trace]:
    """Return the traces of the newest source of each EXPERIMENT, sorted for a file.

    A run of an edited source replaces all runs of the source before, whatever their protocol; all
    runs of one source stay.
    """
    names = [trace.solution for trace in traces]  # packed, not the folder's
    rows = rows_from(traces).assign(solution=names)
    remaining = rows[of_newest_source(rows, EXPERIMENT)]
    in_order = remaining.sort_values([*EXPERIMENT, "protocol", "timestamp"])
    return [traces[place] for place in in_order.index]

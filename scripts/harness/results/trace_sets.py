"""Find and read the traces of one or several trace sets, and the sources that they say they measured.

A trace set is a folder in FlashInfer-Trace's layout; a folder of JSONL files or one such file will do too.
"""

from dataclasses import dataclass
from pathlib import Path

from flashinfer_bench import Solution, Trace
from pydantic import ValidationError

from harness.core import paths
from harness.core.schema import first_fault
from harness.packing import manifest, pack


class TraceSetError(Exception):
    """Nothing can be compared; the message is one line for the user."""


@dataclass(frozen=True)
class Recorded:
    """A trace with an evaluation, where it is written ("file:line"), and the data set that holds it, if any."""

    trace: Trace
    place: str
    root: Path | None


def root_of(path: Path) -> Path | None:
    """The data set that path is or lies in: the nearest folder with definitions/; None without one."""
    folders = [path, *path.parents]
    return next((folder for folder in folders if (folder / "definitions").is_dir()), None)


def files_of(path: Path) -> list[Path]:
    """The trace files that path stands for, sorted. Raises TraceSetError when there are none."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise TraceSetError(f"{path}: no such file or folder, want a trace set or a JSONL file")
    is_root = (path / "definitions").is_dir()
    files = sorted((path / "traces" if is_root else path).rglob("*.jsonl"))
    if not files:
        raise TraceSetError(f"{path}: no traces: it holds no {'traces/**/' if is_root else ''}*.jsonl")
    return files


def read_file(path: Path, shown: str) -> tuple[list[tuple[int, Trace]], list[str]]:
    """(line number, trace) of the lines that are FIB traces, and a warning for each line that is not.

    Raises TraceSetError when lines are JSON, but none is a FIB trace.
    """
    good, warnings, foreign = [], [], []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            good.append((number, Trace.model_validate_json(line)))
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "json_invalid":
                warnings.append(f"{shown}:{number}: left out: not JSON: {first['ctx']['error']}")
                continue
            foreign.append(first_fault(error, "line"))
            warnings.append(f"{shown}:{number}: left out: not a FIB trace: {foreign[-1]}")
    if foreign and not good:
        raise TraceSetError(f"{shown}: of another schema, want FIB traces: {foreign[0]}")
    return good, warnings


def read(given: list[Path]) -> tuple[list[Recorded], list[str]]:
    """Every trace with an evaluation below the given paths, and warnings about lines left out.

    A file that is given twice counts once. Raises TraceSetError for a path without traces, for a file of
    another schema, and when nothing but workloads or broken lines was found.
    """
    found, warnings, seen = [], [], set()
    for path in given:
        for file in files_of(path):
            resolved = file.resolve()
            if resolved in seen:
                continue
            seen.add(resolved)
            root = root_of(resolved)
            # Paths inside this repository are shown alike wherever it lies.
            shown = resolved.relative_to(paths.ROOT).as_posix() if root == paths.ROOT else str(file)
            good, bad = read_file(file, shown)
            warnings += bad
            for number, trace in good:
                if trace.solution is not None and trace.evaluation is not None:
                    found.append(Recorded(trace, f"{shown}:{number}", root))
    if not found:
        listed = ", ".join(map(str, given))
        broken = f"; {len(warnings)} broken, the first is {warnings[0]}" if warnings else ""
        raise TraceSetError(f"no traces with an evaluation in {listed}{broken}")
    return found, warnings


def source_hashes(root: Path) -> tuple[dict[tuple[str, str], str], list[str]]:
    """(definition, solution) -> hash of its source as the data set has it now, and warnings.

    This repository's solutions are packed afresh; another data set's are its Solution files.
    """
    solutions, warnings = [], []
    if root == paths.ROOT:
        for name in manifest.solution_names():
            try:
                solutions += pack.pack(name).values()
            except manifest.PackingError as error:
                warnings.append(f"{error}; its traces count as stale")
    else:
        for file in sorted((root / "solutions").rglob("*.json")):
            try:
                solutions.append(Solution.model_validate_json(file.read_bytes()))
            except ValidationError as error:
                warnings.append(f"{file}: not a FIB Solution: {error.errors()[0]['msg']}; its traces count as stale")
    return {(s.definition, s.name): s.hash() for s in solutions}, warnings

"""Read trace files of any origin, and keep the traces of this project's runs in theirs.

A trace set is a folder in FlashInfer-Trace's layout; a folder of JSONL files or one such file will
do too.
"""

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from flashinfer_bench import (
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Trace,
)
from flashinfer_bench.env import get_fib_cache_path
from pydantic import Field, ValidationError, model_validator

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.core.provenance import of_trace
from moebench.core.schema import first_fault
from moebench.operators.workloads import tokens


class AnyEnvironment(Environment, extra="allow"):
    """Of any version of FIB's schema, and so below: fields that are not known here are kept."""


class AnyCorrectness(Correctness, extra="allow"): ...


class AnyPerformance(Performance, extra="allow"): ...


class AnyEvaluation(Evaluation, extra="allow"):
    """A status that is not known here is its text, and what goes with a status is not checked."""

    status: EvaluationStatus | str = Field(union_mode="left_to_right")
    environment: AnyEnvironment
    correctness: AnyCorrectness | None = None
    performance: AnyPerformance | None = None

    def _validate_status_correctness_performance(self):
        return self


class AnyTrace(Trace, extra="allow"):
    evaluation: AnyEvaluation | None = None

    @model_validator(mode="before")
    @classmethod
    def modern(cls, raw: dict) -> dict:
        """Once workloads had no uuid, a workload alone an empty evaluation, and a machine a
        device.
        """
        if isinstance(raw, dict) and isinstance(workload := raw.get("workload"), dict):
            own = str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(workload, sort_keys=True)))
            raw |= {
                "workload": {"uuid": own} | workload,
                "evaluation": raw.get("evaluation") or None,
            }
            machine = (
                raw["evaluation"].get("environment")
                if isinstance(raw["evaluation"], dict)
                else None
            )
            if isinstance(machine, dict) and "device" in machine:
                raw["evaluation"]["environment"] = {"hardware": machine["device"]} | machine
        return raw

    @property
    def others(self) -> dict:
        """The fields that FIB's schema does not have."""
        evaluation = self.evaluation
        parts = [
            self,
            evaluation,
            evaluation.environment,
            evaluation.correctness,
            evaluation.performance,
        ]
        return {name: value for part in parts if part for name, value in part.model_extra.items()}


@dataclass(frozen=True)
class Recorded:
    """A trace with an evaluation, where it is written ("file:line"), and the data set that holds
    it, if any.
    """

    trace: AnyTrace
    place: str
    root: Path | None


def read(given: list[Path]) -> tuple[list[Recorded], list[str]]:
    """Every trace with an evaluation below the given paths, and a warning for each line that is not
    a FIB trace.

    A file that is given twice counts once. Raises UserError for a path without traces.
    """
    found, warnings, files = [], [], {}
    for path in given:
        if not (below := paths.files_below(path, "traces", "*.jsonl")):
            raise UserError(
                f"{path}: no traces, want a trace set, a folder of *.jsonl, or such a file"
            )
        files |= {file.resolve(): file for file in below if file.resolve() not in files}
    for resolved, file in files.items():
        root = next(
            (folder for folder in resolved.parents if (folder / "definitions").is_dir()), None
        )
        # Paths inside this repository are shown alike wherever it lies.
        shown = resolved.relative_to(paths.ROOT).as_posix() if root == paths.ROOT else str(file)
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            try:
                trace = AnyTrace.model_validate_json(line)
            except ValidationError as error:
                warnings.append(
                    f"{shown}:{number}: left out: not a FIB trace: {first_fault(error, 'line')}"
                )
                continue
            if trace.solution is not None and trace.evaluation is not None:
                found.append(Recorded(trace, f"{shown}:{number}", root))
    if not found:
        raise UserError(
            "; ".join(
                [f"no traces with an evaluation in {', '.join(map(str, given))}", *warnings[:1]]
            )
        )
    return found, warnings


def load(path: Path) -> list[AnyTrace]:
    """Traces in path, in its order; [] without a file. Raises ValueError for a broken line, and a
    workload alone.
    """
    lines = path.read_bytes().splitlines() if path.is_file() else []
    found = [AnyTrace.model_validate_json(line) for line in lines if line.strip()]
    if not all(trace.evaluation for trace in found):
        raise ValueError(f"{path}: has workloads without an evaluation")
    return found


def merge(path: Path, traces: list[Trace]) -> None:
    """Add traces to path, in which the newest of each experiment and protocol stays, if it is of
    the newest source.

    An experiment is a solution on a workload, on one machine, at one tolerance: a short run leaves
    the long run of the same source alone, and a run of an edited source replaces both. Safe among
    processes.
    """
    locks = get_fib_cache_path() / "trace_locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{path.name}.lock"):
        kept, newest = {}, {}
        for trace in sorted([*load(path), *traces], key=lambda trace: trace.evaluation.timestamp):
            by, workload = of_trace(trace), trace.workload
            experiment = (
                trace.solution,
                tokens(workload),
                workload.uuid,
                by.hardware,
                by.tolerance or "",
            )
            newest[experiment] = by.source_fingerprint or by.source_sha1
            kept[*experiment, by.protocol or ""] = trace, newest[experiment]
        ordered = [(key[:-1], *kept[key]) for key in sorted(kept)]
        current = [trace for experiment, trace, source in ordered if source == newest[experiment]]
        write_atomically(path, "".join(f"{trace.model_dump_json()}\n" for trace in current))

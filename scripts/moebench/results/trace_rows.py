"""Traces as the rows of a DataFrame: `rows_from` makes a TraceRow of each trace.

measurements.py and against.py merge these rows; reports/run_table.py and `moebench submit` use them
as they are.
"""

import math
from dataclasses import dataclass, fields

import pandas as pd
from flashinfer_bench import Evaluation, Trace

from moebench.core.provenance import of_trace
from moebench.judging.tolerances import TOLERANCES
from moebench.operators import catalogue
from moebench.operators.workloads import tokens
from moebench.packing.manifest import folder_name

TIMES = ["ms", "reference_ms", "speedup"]
MATCHED = [f"matched_{name}" for name in TOLERANCES]
SHARES = ["matched", *MATCHED]
ERRORS = ["max_absolute_error", "max_relative_error"]
NUMBERS = [*TIMES, *SHARES, *ERRORS]

# Fields of a trace's Provenance that are columns under the same names
PROVENANCE = (
    "packages",
    "source_sha1",
    "source_fingerprint",
    "earlier_code",
    "timestamp",
    "command",
    "host",
    "trials_ms",
)


@dataclass
class TraceRow:
    """What one trace says: the columns that `rows_from` makes, with an example of each."""

    definition: str  # moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048
    geometry: str | None  # full: the layer key; None for a definition that is not in the catalogue
    solution: str  # my_layer: the name of the solution's folder
    uuid: str  # of the workload
    tokens: int  # 1: T of the workload
    hardware: str  # NVIDIA H200
    tolerance: str  # relaxed
    clock: str  # events: one of provenance.CLOCKS
    status: str  # PASSED, or one that FIB does not know
    passed: bool

    # None where the solution did not pass or was not timed.
    ms: float | None  # 0.0361: FIB's latency
    reference_ms: float | None  # 15.2
    speedup: float | None  # 421.4

    # Share of elements inside the run's tolerance, and inside each tolerance it was computed for.
    matched: float | None  # 0.9983
    matched_relaxed: float | None
    matched_contest: float | None
    matched_default: float | None
    max_absolute_error: float | None
    max_relative_error: float | None

    tolerance_text: str  # relaxed: rtol=0.2 atol=0.1 ratio=0.85
    protocol: str  # warmup=10 iterations=50 trials=3
    versions: str  # cuda 13.0; python 3.12.3; torch 2.11.0+cu130
    packages: str | None  # and the further fields of PROVENANCE, as Provenance explains them
    source_sha1: str | None
    source_fingerprint: str | None
    earlier_code: str | None
    timestamp: str
    command: str | None
    host: str | None
    trials_ms: str | None

    place: str  # traces/moe/NAME.jsonl:229; "" unless the trace was read from a file
    log: str


def rows_from(traces: list[Trace]) -> pd.DataFrame:
    """Return a row for each trace, in order. NaN stands for None, and for infinite numbers.

    traces: all have an evaluation.
    """
    folder_names = {}
    rows = []
    for trace in traces:
        key = (trace.solution, trace.definition)
        if key not in folder_names:
            folder_names[key] = folder_name(*key)
        rows.append(vars(row_of(trace, folder_names[key])))

    columns = [field.name for field in fields(TraceRow)]
    table = pd.DataFrame(rows, columns=columns)
    numbers = table[NUMBERS].apply(pd.to_numeric, errors="coerce")  # FIB writes "inf" and "nan"
    is_finite = numbers.abs() < math.inf
    table[NUMBERS] = numbers.where(is_finite)
    table["passed"] = table.passed.astype(bool)  # pandas infers object where there is no row
    return table


def row_of(trace: Trace, solution: str) -> TraceRow:
    """Return the row of a trace. solution: the name of its folder."""
    provenance = of_trace(trace)
    evaluation = trace.evaluation
    status = getattr(evaluation.status, "value", evaluation.status)
    passed = status == "PASSED"
    further = {field: getattr(provenance, field) for field in PROVENANCE}
    return TraceRow(
        definition=trace.definition,
        geometry=catalogue.by_name().get(trace.definition),
        solution=solution,
        uuid=trace.workload.uuid,
        tokens=tokens(trace.workload),
        hardware=provenance.hardware,
        tolerance=provenance.tolerance_name,
        clock=provenance.clock,
        status=status,
        passed=passed,
        **(times(evaluation) if passed else dict.fromkeys(TIMES)),
        **exactness(evaluation, provenance.tolerance_name),
        tolerance_text=provenance.tolerance or "unknown tolerance",
        protocol=provenance.protocol or "unknown protocol",
        versions=provenance.versions_text,
        **further,
        place="",
        log=evaluation.log,
    )


def times(evaluation: Evaluation) -> dict[str, float | None]:
    """Return TIMES of a solution that passed, None where it was not timed."""
    performance = evaluation.performance
    if performance is None:
        return dict.fromkeys(TIMES)
    if performance.latency_ms <= 0 or performance.speedup_factor <= 0:
        return dict.fromkeys(TIMES)  # what FIB leaves on a CPU

    return {
        "ms": performance.latency_ms,
        "reference_ms": performance.reference_latency_ms,
        "speedup": performance.speedup_factor,
    }


def exactness(evaluation: Evaluation, tolerance: str) -> dict[str, float | None]:
    """Return SHARES and ERRORS.

    tolerance: the run's. FIB's evaluator writes the share inside it alone, as matched_ratio.
    """
    correctness = evaluation.correctness
    if correctness is None:
        return dict.fromkeys([*SHARES, *ERRORS])

    extra = correctness.extra or {}
    columns = {"matched": extra.get("matched_ratio")}
    for name in TOLERANCES:
        default = columns["matched"] if name == tolerance else None
        columns[f"matched_{name}"] = extra.get(f"matched_ratio_{name}", default)
    columns["max_absolute_error"] = correctness.max_absolute_error
    columns["max_relative_error"] = correctness.max_relative_error
    return columns


def source_hash(rows: pd.DataFrame) -> pd.Series:
    """Return the hash that tells each row's source apart: the fingerprint, or FIB's hash, or ""."""
    return rows.source_fingerprint.fillna(rows.source_sha1).fillna("")

"""Traces as the rows of a DataFrame: `rows_from` makes a row with COLUMNS of each trace.

measurements.py and against.py merge these rows; reports/run_table.py and `moebench submit` use them
as they are.
"""

import math

import pandas as pd
from flashinfer_bench import Correctness, Performance, Trace

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
PROVENANCE = [
    "packages",
    "source_sha1",
    "source_fingerprint",
    "earlier_code",
    "timestamp",
    "command",
    "host",
    "trials_ms",
]


# The columns that `rows_from` makes, with an example of each
COLUMNS = [
    "definition",  # moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048
    "geometry",  # full: the layer key; None for a definition that is not in the catalogue
    "solution",  # my_layer: the name of the solution's folder
    "uuid",  # of the workload
    "tokens",  # 1: T of the workload
    "hardware",  # NVIDIA H200
    "tolerance",  # relaxed
    "clock",  # events: one of provenance.CLOCKS
    "status",  # PASSED, or one that FIB does not know
    "passed",  # True
    *TIMES,  # 0.0361: FIB's latency, 15.2, 421.4; NaN where it did not pass or was not timed
    # 0.9983: share of elements inside the run's tolerance, and inside each that it was computed for
    *SHARES,
    *ERRORS,
    "tolerance_text",  # relaxed: rtol=0.2 atol=0.1 ratio=0.85
    "protocol",  # warmup=10 iterations=50 trials=3
    "versions",  # cuda 13.0; python 3.12.3; torch 2.11.0+cu130
    *PROVENANCE,
    "place",  # traces/moe/NAME.jsonl:229; "" unless the trace was read from a file
    "log",
]


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
        rows.append(row_of(trace, folder_names[key]))
    table = pd.DataFrame(rows, columns=COLUMNS)
    # FIB writes "inf" and "nan"
    numbers = table[NUMBERS].apply(pd.to_numeric, errors="coerce")
    is_finite = numbers.abs() < math.inf
    table[NUMBERS] = numbers.where(is_finite)
    # pandas infers object where there is no row
    table["passed"] = table.passed.astype(bool)
    return table


def row_of(trace: Trace, solution: str) -> dict[str, object]:
    """Return those of COLUMNS that a trace says. solution: the name of its folder."""
    provenance = of_trace(trace)
    evaluation = trace.evaluation
    status = getattr(evaluation.status, "value", evaluation.status)
    passed = status == "PASSED"
    row = {
        "definition": trace.definition,
        "geometry": catalogue.by_name().get(trace.definition),
        "solution": solution,
        "uuid": trace.workload.uuid,
        "tokens": tokens(trace.workload),
        "hardware": provenance.hardware,
        "tolerance": provenance.tolerance_name,
        "clock": provenance.clock,
        "status": status,
        "passed": passed,
        "tolerance_text": provenance.tolerance or "unknown tolerance",
        "protocol": provenance.protocol or "unknown protocol",
        "versions": provenance.versions_text,
        "place": "",
        "log": evaluation.log,
    }
    row |= provenance.model_dump(include=set(PROVENANCE))
    if passed and evaluation.performance:
        row |= times(evaluation.performance)
    if evaluation.correctness:
        row |= exactness(evaluation.correctness, provenance.tolerance_name)
    return row


def times(performance: Performance) -> dict[str, float]:
    """Return TIMES of a solution that passed, {} where it was not timed."""
    ms = performance.latency_ms
    speedup = performance.speedup_factor
    if ms <= 0 or speedup <= 0:  # what FIB leaves on a CPU
        return {}
    return {
        "ms": ms,
        "reference_ms": performance.reference_latency_ms,
        "speedup": speedup,
    }


def exactness(correctness: Correctness, tolerance: str) -> dict[str, float | None]:
    """Return SHARES and ERRORS.

    tolerance: the run's. FIB's evaluator writes the share inside it alone, as matched_ratio.
    """
    extra = correctness.extra or {}
    matched = extra.get("matched_ratio")
    columns = {
        "matched": matched,
        "max_absolute_error": correctness.max_absolute_error,
        "max_relative_error": correctness.max_relative_error,
    }
    for name in TOLERANCES:
        default = matched if name == tolerance else None
        columns[f"matched_{name}"] = extra.get(f"matched_ratio_{name}", default)
    return columns


def source_hash(rows: pd.DataFrame) -> pd.Series:
    """Return the hash that tells each row's source apart: the fingerprint, or FIB's hash, or ""."""
    return rows.source_fingerprint.fillna(rows.source_sha1).fillna("")


def of_newest_source(rows: pd.DataFrame, experiment: list[str]) -> pd.Series:
    """Return whether each row is of the newest source of those with which it shares these
    columns.
    """
    by_time = rows.assign(code=source_hash(rows)).sort_values(
        "timestamp", kind="stable"
    )
    newest = by_time.groupby(experiment).code.transform("last")
    return (by_time.code == newest).reindex(rows.index)

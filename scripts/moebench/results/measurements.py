"""The one table of results: every trace as a row of a DataFrame, from which every comparison, page
and figure is drawn.

`rows_from` makes a row of each trace. `load` reads trace files, tells which rows are stale, makes
one row of all runs of a cell, (definition, workload, solution, tolerance, clock, GPU), and ranks
those rows.
"""

import math
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
from flashinfer_bench import Evaluation, Solution, Trace

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.printable import printable
from moebench.core.provenance import of_trace
from moebench.judging.tolerances import TOLERANCES
from moebench.operators import catalogue, roofline
from moebench.operators.roofline import Bound
from moebench.operators.workloads import of_data_set, recorded_bound, tokens
from moebench.packing.manifest import folder_name
from moebench.results import spread, staleness, trace_files
from moebench.results.trace_files import Recorded

# Rows are ranked and averaged together where these columns agree, and CONDITION as well.
GROUP = ["definition", "hardware", "tolerance", "clock"]
CONDITION = ["versions", "protocol"]

# A cell: rows where these columns agree are runs of the same, as far as their code and CONDITION
# are the same.
CELL = [*GROUP, "solution", "uuid"]

TIMES = ["ms", "reference_ms", "speedup"]
MATCHED = [f"matched_{name}" for name in TOLERANCES]
SHARES = ["matched", *MATCHED]
ERRORS = ["max_absolute_error", "max_relative_error"]
NUMBERS = [*TIMES, *SHARES, *ERRORS]
BOUNDS = ["bound_ms", "bytes", "flops"]

# In the protocol of a trace that was not measured on this repository's tensors.
DATA_SET_TENSORS = "dataset="

# Columns of `load_solution` that its callers select by, also where there is no row.
NO_ROWS = ["hardware", "tolerance", "clock", "protocol", "uuid", "passed", "ms", "source", "trace"]

# Fields of a trace's provenance that are columns under their own names.
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


def load(wanted: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return a row for each CELL below these paths, and a warning for each unreadable line.

    Columns are `cells`' and
    source: "current", "earlier", "stale" or "unknown" (`staleness.judge`);
    others: the trace's fields that FIB's schema does not have;
    workloads: how many the definition has;
    bound_ms: the roofline bound, NaN on a GPU whose ceilings were not measured;
    bytes, flops: what the bound is made of, NaN where it is;
    comparable: whether versions and protocol are those of most cells of the GROUP;
    counts: whether the row is comparable, timed and not stale;
    over_bound: ms over bound_ms;
    over_fastest: ms over the least ms of the workload, NaN where the row is not ranked (`ranked`);
    tied: whether the range of its runs overlaps that of the fastest (`spread`).

    Raises UserError where there is no trace.
    """
    recorded, warnings = trace_files.read(wanted)
    states, unreadable = staleness.judge_traces(recorded)

    rows = rows_from([each.trace for each in recorded])
    rows["place"] = [each.place for each in recorded]
    rows["source"] = states
    rows["others"] = [each.trace.unknown_fields() for each in recorded]
    rows = rows.join(bounds(recorded))

    rows = with_ranks(one_row_per_cell(rows))
    return rows, [*warnings, *unreadable]


def rows_from(traces: list[Trace]) -> pd.DataFrame:
    """Return a row for each trace with an evaluation, in their order; the columns are `row`'s.

    ms, reference_ms and speedup are NaN where a solution was not timed or did not pass; matched is
    the share of elements inside the run's own tolerance, matched_<tolerance> inside each tolerance
    that the run computed it for.
    """
    solution_names = {}
    rows = []
    for trace in traces:
        key = (trace.solution, trace.definition)
        if key not in solution_names:
            solution_names[key] = folder_name(*key)
        rows.append(row(trace, solution_names[key]))

    table = pd.DataFrame(rows)
    if len(table):
        # FIB writes infinities and NaN as strings.
        numbers = table[NUMBERS].apply(pd.to_numeric, errors="coerce")
        is_finite = numbers.abs() < math.inf
        table[NUMBERS] = numbers.where(is_finite)
    return table


def row(trace: Trace, solution: str) -> dict:
    """Return what a trace says, by column; place is empty. solution: the name of its folder."""
    provenance = of_trace(trace)
    evaluation = trace.evaluation
    status = status_text(evaluation)

    columns = {
        "definition": trace.definition,
        "geometry": catalogue.by_name().get(trace.definition),
        "solution": solution,
        "uuid": trace.workload.uuid,
        "tokens": tokens(trace.workload),
        "hardware": provenance.hardware,
        "tolerance": provenance.tolerance_name,
        "clock": provenance.clock,
        "status": status,
        "passed": status == "PASSED",
    }
    columns |= times(evaluation)
    columns |= exactness(evaluation, provenance.tolerance_name)
    columns["tolerance_text"] = provenance.tolerance or "unknown tolerance"
    columns["protocol"] = provenance.protocol or "unknown protocol"
    columns["versions"] = provenance.versions_text
    for field in PROVENANCE:
        columns[field] = getattr(provenance, field)
    columns["place"] = ""
    columns["log"] = evaluation.log
    return columns


def status_text(evaluation: Evaluation) -> str:
    """Return the status as a text, also one that FIB does not know."""
    return getattr(evaluation.status, "value", evaluation.status)


def times(evaluation: Evaluation) -> dict[str, float | None]:
    """Return TIMES, None where the solution did not pass or was not timed."""
    performance = evaluation.performance
    if performance is None or status_text(evaluation) != "PASSED":
        return dict.fromkeys(TIMES)
    if performance.latency_ms <= 0 or performance.speedup_factor <= 0:
        return dict.fromkeys(TIMES)  # what FIB leaves on a CPU

    return {
        "ms": performance.latency_ms,
        "reference_ms": performance.reference_latency_ms,
        "speedup": performance.speedup_factor,
    }


def exactness(evaluation: Evaluation, tolerance: str) -> dict[str, float | None]:
    """Return the greatest errors and the shares of elements inside the tolerances.

    tolerance: the run's own, whose share older traces have under no other name than matched.
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


def load_solution(solution: Solution, wanted: list[Path]) -> pd.DataFrame:
    """Return `rows_from`'s rows of a packed solution below these paths, the newest first.

    Two more columns are trace, and source: its state by this packed solution. Warnings are printed.
    """
    recorded, warnings = trace_files.read(wanted) if wanted else ([], [])
    for warning in warnings:
        print(printable(warning))

    traces = []
    for each in recorded:
        if each.trace.definition == solution.definition:
            traces.append(each.trace)
    if not traces:
        return pd.DataFrame(columns=NO_ROWS)

    rows = rows_from(traces)
    rows["trace"] = traces
    hashes_now = staleness.hashes([solution])
    rows["source"] = [staleness.judge(of_trace(trace), hashes_now) for trace in traces]

    name = folder_name(solution.name, solution.definition)
    of_solution = rows[rows.solution == name]
    return of_solution.sort_values("timestamp", ascending=False, kind="stable")


def bounds(recorded: list[Recorded]) -> pd.DataFrame:
    """Return BOUNDS and workloads, as in `load`, of each trace."""
    uuids = workload_uuids(recorded)
    bound_of_workload = {}
    rows = []
    for each in recorded:
        trace = each.trace
        columns = dict.fromkeys(BOUNDS, math.nan)
        if can_be_bounded(trace):
            key = (each.root, trace.definition, trace.workload.uuid)
            if key not in bound_of_workload:
                bound_of_workload[key] = recorded_bound(trace.definition, trace.workload, each.root)
            columns |= bound_on(trace.evaluation.environment.hardware, bound_of_workload[key])
        columns["workloads"] = len(uuids[each.root, trace.definition])
        rows.append(columns)
    return pd.DataFrame(rows)


def can_be_bounded(trace: Trace) -> bool:
    """Return whether the ceilings of a trace's GPU and the tensors it ran on are known.

    A run on another data set, whose routing is not that of our workload with the same uuid, is
    named in the protocol.
    """
    protocol = of_trace(trace).protocol or ""
    is_elsewhere = DATA_SET_TENSORS in protocol
    return trace.evaluation.environment.hardware in roofline.CEILINGS and not is_elsewhere


def bound_on(gpu: str, bound: Bound | None) -> dict[str, float]:
    """Return BOUNDS on a GPU; nothing where the routing is not known or no expert has a token."""
    if bound is None or not bound.rows:
        return {}
    on_gpu = replace(bound, gpu=gpu)
    return {"bound_ms": on_gpu.ms, "bytes": bound.bytes, "flops": bound.flops}


def workload_uuids(recorded: list[Recorded]) -> dict[tuple[Path | None, str], set[str]]:
    """Return (data set, definition) -> uuids of its workloads, there and in these traces."""
    uuids = {}
    for each in recorded:
        key = (each.root, each.trace.definition)
        if key not in uuids:
            uuids[key] = uuids_of_data_set(*key)
        uuids[key].add(each.trace.workload.uuid)
    return uuids


def uuids_of_data_set(root: Path | None, definition: str) -> set[str]:
    """Return the uuids of a data set's workloads; none of one that cannot be read, as those in the
    traces are enough for a comparison.
    """
    try:
        workloads = of_data_set(definition, root or paths.ROOT)
    except UserError:
        return set()
    return {workload.uuid for workload in workloads}


def one_row_per_cell(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each CELL, made of the runs chosen for it, and whether it is comparable.

    What is not stale comes before what is, then the condition under which most cells of the group
    were run, then the code that was run last.
    """
    hashes = rows.source_fingerprint.fillna(rows.source_sha1).fillna("")
    rows = rows.assign(code=hashes + rows.source)
    rows["fresh"] = rows.source != "stale"
    rows["comparable"] = has_usual_condition(rows)

    best_last = rows.sort_values(["fresh", "comparable", "timestamp"], kind="stable")
    decisive = ["fresh", "code", *CONDITION]
    best = best_last.groupby(CELL)[decisive].transform("last")
    is_counted = (rows[decisive] == best.sort_index()).all(axis=1)

    merged = cells(rows[is_counted], CELL).drop(columns=["fresh", "code"])
    return merged.sort_values([*GROUP, "tokens", "uuid"])


def has_usual_condition(rows: pd.DataFrame) -> pd.Series:
    """Return whether a row's CONDITION is that of most cells of its GROUP, stale ones left out."""
    cell = rows.solution + rows.uuid
    rows = rows.assign(fresh_cell=cell.where(rows.fresh))
    of_condition = rows.groupby([*GROUP, *CONDITION])
    rows["cells"] = of_condition.fresh_cell.transform("nunique")
    most = rows.groupby(GROUP).cells.transform("max")
    return rows.cells == most


def cells(rows: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return one row for all runs that agree in the columns of the key: the newest run's, or the
    newest that failed, with

    runs: how many there are;
    TIMES: medians; ms_low, ms_high: the least and the greatest ms; all NaN where a run failed;
    matched and matched_<tolerance>: the least; the errors: the greatest.
    """
    of_cell = rows.groupby(key)
    merged = rows.assign(
        runs=of_cell.passed.transform("size"),
        ms_low=of_cell.ms.transform("min"),
        ms_high=of_cell.ms.transform("max"),
    )
    for columns, merge in ((TIMES, "median"), (SHARES, "min"), (ERRORS, "max")):
        merged[columns] = of_cell[columns].transform(merge)

    all_passed = merged.passed.astype(bool)
    times_and_range = [*TIMES, "ms_low", "ms_high"]
    merged[times_and_range] = merged[times_and_range].where(all_passed)

    merged["failed"] = ~all_passed
    shown_last = merged.sort_values(["failed", "timestamp"], kind="stable")
    return shown_last.drop_duplicates(key, keep="last").drop(columns="failed")


def median_runs(rows: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return of the runs that agree in the columns of the key the one that stands for all.

    It is one that failed, or the one with the median time, of two the slower.
    """
    chosen = []
    for _, runs in rows.groupby(key):
        slowest_last = runs.sort_values(["passed", "ms"], kind="stable")
        all_passed = runs.passed.astype(bool).all()
        place = len(runs) // 2 if all_passed else 0
        chosen.append(slowest_last.index[place])
    return rows.loc[chosen]


def with_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with ranges, counts, over_bound, over_fastest and tied, as in `load`."""
    rows = spread.with_ranges(rows)
    is_fresh = rows.source != "stale"
    counts = rows.comparable & is_fresh & rows.ms.notna()

    ranked_ms = rows.ms.where(counts & ranked(rows.protocol))
    workload = [rows[column] for column in [*GROUP, "uuid"]]
    fastest = ranked_ms.groupby(workload).transform("min")

    rows = rows.assign(
        counts=counts,
        over_bound=rows.ms / rows.bound_ms,
        over_fastest=ranked_ms / fastest,
        tied=spread.tied_with_fastest(rows, ranked_ms, workload),
    )
    return rows.reset_index(drop=True)


def ranked(protocols: pd.Series) -> pd.Series:
    """Return for each protocol whether its times say which solution is the fastest.

    The time of a single call, as passes at another tolerance are recorded, does not.
    """
    repeated = {protocol: timed_calls(protocol) != 1 for protocol in set(protocols)}
    return protocols.map(repeated).astype(bool)


def timed_calls(protocol: str) -> int | None:
    """Return the timed calls of a protocol as `Plan.protocol` writes it; None where it is not."""
    iterations = re.search(r"\biterations=(\d+)", protocol)
    trials = re.search(r"\btrials=(\d+)", protocol)
    if not iterations or not trials:
        return None
    return int(iterations[1]) * int(trials[1])

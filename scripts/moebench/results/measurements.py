"""The one table of results: every trace as a row of a DataFrame, from which every comparison, page
and figure is drawn.

`rows_from` makes a row of each trace. `load` reads trace files, tells which rows are stale, makes
one row of all runs of a cell, (definition, workload, solution, tolerance, clock, GPU), and ranks
those rows.
"""

import math
import re
from contextlib import suppress
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

MATCHED = [f"matched_{name}" for name in TOLERANCES]
TIMES = ["ms", "reference_ms", "speedup"]
NUMBERS = [*TIMES, "matched", "max_absolute_error", "max_relative_error", *MATCHED]

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
    level: whether the range of its runs overlaps that of the fastest (`spread`).

    Raises UserError where there is no trace.
    """
    recorded, warnings = trace_files.read(wanted)
    states, unreadable = staleness.judge_traces(recorded)

    traces = [each.trace for each in recorded]
    rows = rows_from(traces, [each.place for each in recorded])
    rows["source"] = states
    rows["others"] = [trace.unknown_fields() for trace in traces]
    rows = rows.join(bounds(recorded))

    return with_ranks(one_row_per_cell(rows)), [*warnings, *unreadable]


def rows_from(traces: list[Trace], places: list[str] | None = None) -> pd.DataFrame:
    """Return a row for each trace with an evaluation, in their order; the columns are `row`'s.

    places: where each trace is written, "file:line". ms, reference_ms and speedup are NaN where a
    solution was not timed or did not pass; matched is the share of elements inside the run's own
    tolerance, matched_<tolerance> inside each tolerance that the run computed it for.
    """
    solution_names = {}
    for key in {(trace.solution, trace.definition) for trace in traces}:
        solution_names[key] = folder_name(*key)

    rows = []
    for trace, place in zip(traces, places or [""] * len(traces), strict=True):
        name = solution_names[trace.solution, trace.definition]
        rows.append(row(trace, name, place))

    table = pd.DataFrame(rows)
    if len(table):
        # FIB writes infinities and NaN as strings.
        numbers = table[NUMBERS].apply(pd.to_numeric, errors="coerce")
        table[NUMBERS] = numbers.replace([math.inf, -math.inf], math.nan)
    return table


def row(trace: Trace, solution: str, place: str) -> dict:
    """Return what a trace says, by column. solution: the name of its folder."""
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
    columns |= {
        "tolerance_text": provenance.tolerance or "unknown tolerance",
        "protocol": provenance.protocol or "unknown protocol",
        "versions": provenance.versions_text,
    }
    columns |= {field: getattr(provenance, field) for field in PROVENANCE}
    columns |= {"place": place, "log": evaluation.log}
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
        return dict.fromkeys(["matched", *MATCHED, "max_absolute_error", "max_relative_error"])

    extra = correctness.extra or {}
    matched = extra.get("matched_ratio")
    shares = {f"matched_ratio_{tolerance}": matched} | extra

    columns = {"matched": matched}
    for name in TOLERANCES:
        columns[f"matched_{name}"] = shares.get(f"matched_ratio_{name}")
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

    traces = [each.trace for each in recorded if each.trace.definition == solution.definition]
    if not traces:
        return pd.DataFrame(columns=NO_ROWS)

    hashes_now = staleness.hashes([solution])
    rows = rows_from(traces)
    rows["trace"] = traces
    rows["source"] = [staleness.judge(of_trace(trace), hashes_now) for trace in traces]
    rows = rows[rows.solution == folder_name(solution.name, solution.definition)]
    return rows.sort_values("timestamp", ascending=False, kind="stable")


def bounds(recorded: list[Recorded]) -> pd.DataFrame:
    """Return bound_ms, bytes, flops and workloads, as in `load`, of each trace."""
    uuids = workload_uuids(recorded)
    bound_of_workload = {}
    rows = []
    for each in recorded:
        trace = each.trace
        key = (each.root, trace.definition, trace.workload.uuid)
        gpu = trace.evaluation.environment.hardware
        bound = None
        # A run on another data set, whose routing is not that of our workload with the same uuid,
        # is named in the protocol.
        if gpu in roofline.CEILINGS and "dataset=" not in (of_trace(trace).protocol or ""):
            if key not in bound_of_workload:
                bound_of_workload[key] = recorded_bound(trace.definition, trace.workload, each.root)
            bound = bound_of_workload[key]

        # NaN where the routing is not known, too, or no expert has a token.
        columns = dict.fromkeys(["bound_ms", "bytes", "flops"], math.nan)
        if bound and bound.rows:
            bound_ms = replace(bound, gpu=gpu).ms
            columns = {"bound_ms": bound_ms, "bytes": bound.bytes, "flops": bound.flops}
        columns["workloads"] = len(uuids[each.root, trace.definition])
        rows.append(columns)
    return pd.DataFrame(rows)


def workload_uuids(recorded: list[Recorded]) -> dict[tuple[Path | None, str], set[str]]:
    """Return (data set, definition) -> uuids of its workloads, there and in these traces."""
    uuids = {}
    for each in recorded:
        definition = each.trace.definition
        key = (each.root, definition)
        if key not in uuids:
            uuids[key] = set()
            with suppress(UserError):  # those in the traces are enough for a comparison
                workloads = of_data_set(definition, each.root or paths.ROOT)
                uuids[key].update(workload.uuid for workload in workloads)
        uuids[key].add(each.trace.workload.uuid)
    return uuids


def one_row_per_cell(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each CELL, made of the runs chosen for it, and whether it is comparable.

    What is not stale comes before what is, then the condition under which most cells of the group
    were run, then the code that was run last.
    """
    rows = rows.assign(fresh=rows.source != "stale")
    cell = (rows.solution + rows.uuid).where(rows.fresh)
    of_same_condition = cell.groupby([rows[name] for name in (*GROUP, *CONDITION)]).transform(
        "nunique"
    )
    most = of_same_condition.groupby([rows[column] for column in GROUP]).transform("max")
    rows["comparable"] = of_same_condition == most
    rows["code"] = rows.source_fingerprint.fillna(rows.source_sha1).fillna("") + rows.source

    best_last = rows.sort_values(["fresh", "comparable", "timestamp"], kind="stable")
    of_cell = best_last.groupby(CELL)
    is_run_that_counts = pd.Series(True, index=rows.index)
    for column in ("fresh", "code", *CONDITION):
        is_run_that_counts &= best_last[column] == of_cell[column].transform("last")

    counted = cells(rows[is_run_that_counts], CELL).drop(columns=["fresh", "code"])
    return counted.sort_values([*GROUP, "tokens", "uuid"])


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
    for column in TIMES:
        merged[column] = of_cell[column].transform("median")
    for column in ("matched", *MATCHED):
        merged[column] = of_cell[column].transform("min")
    for column in ("max_absolute_error", "max_relative_error"):
        merged[column] = of_cell[column].transform("max")

    all_passed = merged.passed.astype(bool)
    for column in (*TIMES, "ms_low", "ms_high"):
        merged[column] = merged[column].where(all_passed)

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
        chosen.append(slowest_last.index[len(runs) // 2 if all_passed else 0])
    return rows.loc[chosen]


def with_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with ranges, counts, over_bound, over_fastest and level, as in `load`."""
    rows = spread.with_ranges(rows)
    counts = rows.comparable & (rows.source != "stale") & rows.ms.notna()

    ranked_ms = rows.ms.where(counts & ranked(rows.protocol))
    workload = [rows[column] for column in [*GROUP, "uuid"]]
    over_fastest = ranked_ms / ranked_ms.groupby(workload).transform("min")

    rows = rows.assign(
        counts=counts,
        over_bound=rows.ms / rows.bound_ms,
        over_fastest=over_fastest,
        level=spread.tied_with_fastest(rows, ranked_ms, workload),
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

"""The one table of results: traces as a pandas DataFrame, from which every comparison, page and
figure is drawn.

One row a (definition, workload, solution, tolerance, clock, GPU). `of_traces` makes rows; `load`
reads trace files, tells which rows are stale, keeps of several traces of a cell the one that
counts, and sets rows in relation.
"""

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pandas as pd
from flashinfer_bench import Solution, Trace

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.provenance import of_trace
from moebench.judging.tolerances import TOLERANCES
from moebench.operators import roofline
from moebench.operators.catalogue import BY_NAME
from moebench.operators.workloads import of_data_set, recorded_bound, tokens
from moebench.packing.manifest import folder_name
from moebench.results import staleness, trace_files
from moebench.results.trace_files import Recorded

GROUP = [
    "definition",
    "hardware",
    "tolerance",
    "clock",
]  # what is ranked and averaged together, ...
CONDITION = ["versions", "protocol"]  # ... where these agree, too
CELL = [*GROUP, "solution", "uuid"]  # of which one row counts
NUMBERS = ["ms", "reference_ms", "speedup", "matched", "max_absolute_error", "max_relative_error"]
NUMBERS += [f"matched_{name}" for name in TOLERANCES]
BY = (
    "packages",
    "source_sha1",
    "source_fingerprint",
    "timestamp",
    "command",
    "host",
)  # of a trace's provenance
LEVEL = (
    1.03  # a time up to 3% above the least is level with it: no smaller difference is called one
)


def row(trace: Trace, place: str, names: dict[tuple[str, str], str]) -> dict:
    """place: where the trace is written, "file:line". names: (packed solution, definition) -> its
    folder's name.
    """
    by, evaluation = of_trace(trace), trace.evaluation
    status = getattr(evaluation.status, "value", evaluation.status)
    correctness, performance = evaluation.correctness, evaluation.performance
    positive = performance and performance.latency_ms > 0 and performance.speedup_factor > 0
    timed = (
        performance if positive and status == "PASSED" else None
    )  # on a CPU FIB leaves times at zero
    extra = (correctness.extra or {}) if correctness else {}
    own = extra.get("matched_ratio")
    extra = {f"matched_ratio_{by.tolerance_name}": own} | extra
    return {
        "definition": trace.definition,
        "geometry": BY_NAME.get(trace.definition),
        "solution": names[trace.solution, trace.definition],
        "uuid": trace.workload.uuid,
        "tokens": tokens(trace.workload),
        "hardware": by.hardware,
        "tolerance": by.tolerance_name,
        "clock": by.clock,
        "status": status,
        "passed": status == "PASSED",
        "ms": timed and timed.latency_ms,
        "reference_ms": timed and timed.reference_latency_ms,
        "speedup": timed and timed.speedup_factor,
        "matched": own,
        **{f"matched_{name}": extra.get(f"matched_ratio_{name}") for name in TOLERANCES},
        "max_absolute_error": correctness and correctness.max_absolute_error,
        "max_relative_error": correctness and correctness.max_relative_error,
        "tolerance_text": by.tolerance or "unknown tolerance",
        "protocol": by.protocol or "unknown protocol",
        "versions": by.versions_text,
        **{field: getattr(by, field) for field in BY},
        "place": place,
        "log": evaluation.log,
    }


def of_traces(traces: list[Trace], places: list[str] | None = None) -> pd.DataFrame:
    """A row for each trace with an evaluation, in their order; the columns are `row`'s.

    ms, reference_ms and speedup are NaN where a solution was not timed or did not pass; matched is
    the share of elements inside the run's own tolerance, matched_<tolerance> inside each one, where
    the run computed it.
    """
    names = {
        of: folder_name(*of) for of in {(trace.solution, trace.definition) for trace in traces}
    }
    made = pd.DataFrame(
        [row(*each, names) for each in zip(traces, places or [""] * len(traces), strict=True)]
    )
    if len(made):  # FIB writes infinities and NaN as strings
        made[NUMBERS] = (
            made[NUMBERS]
            .apply(pd.to_numeric, errors="coerce")
            .replace([math.inf, -math.inf], math.nan)
        )
    return made


def load(given: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Every cell's row that counts, below the given paths, and a warning for each line that could
    not be read.

    More columns: source ("current", "stale", "unknown"); others, fields that FIB's schema does not
    have; workloads, how many the definition has; bound_ms, NaN on a GPU whose ceilings were not
    measured; over_bound, ms over it; comparable, whether its versions and protocol are those of
    most of its GROUP; counts, whether it is comparable, timed and not stale; of rows that count
    over_fastest, ms over the least of its workload, and level, whether that is at most LEVEL.
    Raises UserError where there is no trace.
    """
    recorded, warnings = trace_files.read(given)
    states, unreadable = staleness.of_traces(recorded)
    table = of_traces([found.trace for found in recorded], [found.place for found in recorded])
    table = table.assign(source=states, others=[found.trace.others for found in recorded])
    return in_relation(counting(table.join(of_workloads(recorded)))), [*warnings, *unreadable]


def of_solution(solution: Solution, given: list[Path]) -> pd.DataFrame:
    """`of_traces`'s rows of a packed solution, newest first, with `trace` and its `source` by it;
    prints warnings.
    """
    recorded, warnings = trace_files.read(given) if given else ([], [])
    print(*(f"{warning}\n" for warning in warnings), sep="", end="")
    traces = [found.trace for found in recorded if found.trace.definition == solution.definition]
    if not traces:
        return pd.DataFrame(
            columns="hardware tolerance clock protocol uuid passed ms source trace".split()
        )
    now = staleness.hashes([solution])
    rows = of_traces(traces).assign(
        trace=traces, source=[staleness.judge(of_trace(each), now) for each in traces]
    )
    rows = rows[rows.solution == folder_name(solution.name, solution.definition)]
    return rows.sort_values("timestamp", ascending=False, kind="stable")


def of_workloads(recorded: list[Recorded]) -> pd.DataFrame:
    """bound_ms and workloads of each trace; a workload without a row has no bound that says
    anything.
    """
    uuids, bounds, bound_ms = {}, {}, []  # uuids: of a data set's definition
    for found in recorded:
        definition, workload, root = found.trace.definition, found.trace.workload, found.root
        if (root, definition) not in uuids:
            uuids[root, definition] = set()
            with suppress(UserError):  # those in the traces are enough for a comparison
                uuids[root, definition] = {
                    w.uuid for w in of_data_set(definition, root or paths.ROOT)
                }
        uuids[root, definition].add(workload.uuid)
        key, gpu = (root, definition, workload.uuid), found.trace.evaluation.environment.hardware
        ours = "dataset=" not in (
            of_trace(found.trace).protocol or ""
        )  # others' routing under our uuid is not ours
        if ours and gpu in roofline.CEILINGS and key not in bounds:
            bounds[key] = recorded_bound(definition, workload, root)
        bound = bounds.get(key) if ours and gpu in roofline.CEILINGS else None
        bound_ms.append(replace(bound, gpu=gpu).ms if bound and bound.rows else math.nan)
    return pd.DataFrame(
        {
            "bound_ms": bound_ms,
            "workloads": [len(uuids[r.root, r.trace.definition]) for r in recorded],
        }
    )


def counting(table: pd.DataFrame) -> pd.DataFrame:
    """Of each cell one row: of the current source, of the condition that most of its group share,
    the newest.
    """
    table = table.assign(fresh=table.source != "stale")
    table["alike"] = table.groupby([*GROUP, *CONDITION]).fresh.transform("sum")
    table["comparable"] = table.alike == table.groupby(GROUP).alike.transform("max")
    best_last = table.drop(columns="alike").sort_values(
        ["fresh", "comparable", "timestamp"], kind="stable"
    )
    return (
        best_last.drop_duplicates(CELL, keep="last")
        .drop(columns="fresh")
        .sort_values([*GROUP, "tokens", "uuid"])
    )


def in_relation(table: pd.DataFrame) -> pd.DataFrame:
    counts = table.comparable & (table.source != "stale") & table.ms.notna()
    ms = table.ms.where(counts)
    over_fastest = ms / ms.groupby([table[column] for column in [*GROUP, "uuid"]]).transform("min")
    related = {
        "over_bound": table.ms / table.bound_ms,
        "over_fastest": over_fastest,
        "level": over_fastest <= LEVEL,
    }
    return table.assign(counts=counts, **related).reset_index(drop=True)

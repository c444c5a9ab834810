"""Traces as a table, one row each, and the rule for which of several traces of one cell counts."""

import math
from types import SimpleNamespace

import pandas as pd

from harness.judging.tolerances import TOLERANCES
from harness.packing.manifest import folder_name
from harness.results.trace_files import Recorded

# Figures are set against each other, averaged or ranked only where all of these agree.
CONDITION = ["definition", "hardware", "versions", "tolerance", "protocol"]
FIGURES = ["latency_ms", "reference_ms", "speedup", "matched", "max_absolute_error", "max_relative_error"]


def finite(value: object) -> float | None:
    """A finite number or None; FIB writes infinities and NaN as strings."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def trace_table(recorded: list[Recorded]) -> pd.DataFrame:
    """A row for each trace, in their order.

    Columns: CONDITION; solution (its folder's name, whatever it is packed as); uuid; seq_len (0 where the workload has
    no such axis); status; latency_ms, reference_ms, speedup (none unless it passed and was timed); max_absolute_error,
    max_relative_error; matched_at (tolerance's name -> share of elements inside it: its own tolerance, or each where
    the run computed all) and matched, that of its own; tolerance_name; clock, one of CLOCKS; solution_sha1, timestamp,
    command, packages; log; recorded_in ("file:line"); found, the Recorded.
    """
    traces = pd.DataFrame(map(_row, recorded)).astype(dict.fromkeys(FIGURES, float))
    packed = traces[["solution", "definition"]].drop_duplicates()
    named = {(name, of): folder_name(name, of) for name, of in packed.itertuples(index=False)}
    return traces.assign(solution=[named[pair] for pair in zip(traces.solution, traces.definition, strict=True)])


def _row(found: Recorded) -> dict:
    trace, by = found.trace, found.provenance
    evaluation, axes = trace.evaluation, trace.workload.axes
    correctness, performance = evaluation.correctness, evaluation.performance
    # On a CPU FIB's times are left at zero: such a trace shows what is right, not what is fast.
    timed = performance if performance and performance.latency_ms > 0 and performance.speedup_factor > 0 else None
    extra = (correctness.extra or {}) if correctness else {}
    matched_at = {name: finite(extra.get(f"matched_ratio_{name}")) for name in TOLERANCES}
    matched_at[by.tolerance_name] = finite(extra.get("matched_ratio"))
    return {
        "definition": trace.definition,
        "hardware": by.hardware,
        "versions": by.versions_text,
        "tolerance": by.tolerance or "unknown tolerance",
        "protocol": by.protocol or "unknown protocol",
        "tolerance_name": by.tolerance_name,
        "clock": by.clock,
        "solution": trace.solution,
        "uuid": trace.workload.uuid,
        "seq_len": axes.get("seq_len", 0),
        "status": evaluation.status.value,
        "latency_ms": timed and timed.latency_ms,
        "reference_ms": timed and timed.reference_latency_ms,
        "speedup": timed and timed.speedup_factor,
        "matched": matched_at[by.tolerance_name],
        "matched_at": {name: ratio for name, ratio in matched_at.items() if ratio is not None},
        "max_absolute_error": finite(correctness.max_absolute_error) if correctness else None,
        "max_relative_error": finite(correctness.max_relative_error) if correctness else None,
        "solution_sha1": by.source_sha1,
        "timestamp": by.timestamp,
        "command": by.command,
        "packages": by.packages,
        "log": evaluation.log,
        "recorded_in": found.place,
        "found": found,
    }


def counting(traces: pd.DataFrame, bounds: dict[str, float | None]) -> pd.DataFrame:
    """The trace of each cell that counts: one that is not stale before one that is, and the newest of those.

    traces: of one condition, with the column source, see staleness. bounds: uuid -> roofline bound in ms. Adds
    superseded (how many other traces of the cell do not count), over_bound (latency over the bound), and whether the
    cell is stale, passed and counts (in means).
    """
    cells = traces.assign(stale=traces.source == "stale", passed=traces.status == "PASSED")
    cells = cells.sort_values(["stale", "timestamp"], ascending=[True, False], kind="stable")
    cell = ["solution", "uuid"]
    cells["superseded"] = cells.groupby(cell).cumcount(ascending=False)
    cells = cells.drop_duplicates(cell).sort_values("solution")
    cells["over_bound"] = cells.latency_ms / cells.uuid.map(bounds).astype(float)
    return cells.assign(counts=~cells.stale & cells.speedup.notna())


def records(table: pd.DataFrame) -> list[SimpleNamespace]:
    """The table's rows with its columns as attributes; NaN becomes None."""
    return [SimpleNamespace(**{key: known(value) for key, value in row.items()}) for row in table.to_dict("records")]


def known(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value

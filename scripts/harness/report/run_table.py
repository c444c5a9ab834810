"""What a run prints: a line for each solution on a workload as it is judged, and a table with one row per solution."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from flashinfer_bench import Evaluation, EvaluationStatus

from harness.judging.run import Judged
from harness.judging.tolerances import TOLERANCES
from harness.report.table import Cell, Table, decimal
from harness.results.summary import is_level

PASSED = EvaluationStatus.PASSED
INFINITY = float("inf")
LOST = "what ran it failed twice"


def extra(evaluation: Evaluation) -> dict:
    """What FIB records of correctness beside the errors."""
    return (evaluation.correctness and evaluation.correctness.extra) or {}


def matched(evaluation: Evaluation) -> dict[str, float]:
    """Matched ratio by tolerance where all were computed, else FIB's one, named "matched"; {} where it is unknown."""
    found = extra(evaluation)
    known = {name: found[f"matched_ratio_{name}"] for name in TOLERANCES if f"matched_ratio_{name}" in found}
    return known or ({"matched": found["matched_ratio"]} if "matched_ratio" in found else {})


def lines(judged: Judged, timed: bool, before: dict[str, list[str]]) -> Iterator[str]:
    """For each solution: status, ms and speed-up if it was timed and passed, the share that matched; why it failed.

    before: the reasons last shown for each solution, which are not repeated; it is updated.
    """
    if judged.error:
        yield f"{judged.label}  {judged.error}"
    for name, why in judged.lost.items():
        yield f"{judged.label}  {name}  NOT JUDGED: {LOST}"
        yield from (f"    {line}" for line in why.strip().splitlines())
    for name, trace in judged.traces.items():
        evaluation = trace.evaluation
        parts = [judged.label, name, evaluation.status.value]
        if timed and evaluation.status == PASSED:
            speed = evaluation.performance
            parts.append(f"{speed.latency_ms:8.4f} ms  {speed.speedup_factor:7.1f}x")
        if "matched_ratio" in extra(evaluation):
            parts.append(f"matched {extra(evaluation)['matched_ratio']:.4f}")
        reasons = judged.reasons.get(name, [])
        repeated, before[name] = reasons and reasons == before.get(name), reasons or before.get(name, [])
        yield "  ".join([*parts, *(["as before"] if repeated else [])])
        yield from () if repeated else (f"    {reason}" for reason in reasons)


def by_hardware(judged: list[Judged]) -> dict[str, list[Judged]]:
    """The workloads by the devices that they were measured on, "" where that is one: no table mixes two."""
    devices = sorted({trace.evaluation.environment.hardware for w in judged for trace in w.traces.values()})
    if len(devices) < 2:
        return {"": judged} if judged else {}

    def part(w: Judged, device: str) -> dict:
        return {name: t for name, t in w.traces.items() if t.evaluation.environment.hardware == device}

    return {device: [replace(w, traces=part(w, device)) for w in judged if part(w, device)] for device in devices}


def latency(evaluation: Evaluation | None) -> float:
    """ms; infinity for what did not pass."""
    return evaluation.performance.latency_ms if evaluation and evaluation.status == PASSED else INFINITY


def table(judged: list[Judged], names: list[str], skipped: list[str], timed: bool) -> Table:
    """One row per solution that was run, skipped below it. Means are arithmetic, over the workloads that passed."""
    found = {name: [w.traces[name].evaluation if name in w.traces else None for w in judged] for name in names}
    settings = list(dict.fromkeys(setting for evs in found.values() for e in evs if e for setting in matched(e)))
    best = [min(map(latency, evaluations)) for evaluations in zip(*found.values(), strict=True)]
    rows, notes = [], [f"REFERENCE FAILED on {w.label}: {w.error}" for w in judged if w.error]
    notes += [f"NOT JUDGED: {name} on {w.label}: {LOST}" for w in judged for name in w.lost]
    for name, evaluations in found.items():
        good = [e for e in evaluations if e and e.status == PASSED]
        asked = sum(w.error is not None or name in w.traces or name in w.lost for w in judged)  # the rest: cut short
        row = [name, Cell(f"{len(good)}/{asked}", "good" if len(good) == asked else "failed")]
        if timed:
            row.append(decimal(fmean(e.performance.latency_ms for e in good) if good else None, 4))
            row.append(decimal(fmean(e.performance.speedup_factor for e in good) if good else None, 1, "x"))
            level = (
                is_level(latency(e), least) for e, least in zip(evaluations, best, strict=True) if least < INFINITY
            )
            row.append(sum(level))
        for setting in settings:
            known = [matched(e)[setting] for e in evaluations if e and setting in matched(e)]
            row.append(decimal(min(known, default=None), 4))
        rows.append(row)
        failed = defaultdict(list)
        for w, e in zip(judged, evaluations, strict=True):
            if e and e.status != PASSED:
                failed[e.status.value].append(w.label)
        notes += [f"{name}: {status} on {', '.join(labels)}" for status, labels in failed.items()]
    times = ["mean ms", "speed-up", "fastest"] if timed else []
    captions = ["means over what passed; fastest, or within 3% of it: on how many workloads"] if timed else []
    captions += [f"{', '.join(settings)}: the lowest share of elements within the tolerance"] if settings else []
    return Table(["solution", "passed", *times, *settings], [rows], notes=[*captions, *notes, *skipped])

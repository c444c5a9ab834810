"""What a run prints: one line per finished workload, then one table with a column per solution."""

from collections.abc import Mapping

from flashinfer_bench import Evaluation, EvaluationStatus
from rich.table import Table
from rich.text import Text

from harness.evaluation.tolerances import TOLERANCES

PASSED = EvaluationStatus.PASSED
TIMED = "ms, speed-up, matched"
UNTIMED = "matched: " + ", ".join(TOLERANCES)


def matched(evaluation: Evaluation) -> str:
    """Matched ratio, or one for each tolerance where all were computed; empty when unknown."""
    extra = (evaluation.correctness.extra or {}) if evaluation.correctness else {}
    names = [f"matched_ratio_{name}" for name in TOLERANCES]
    if names[0] not in extra:
        names = ["matched_ratio"]
    return "  ".join(f"{extra[name]:.4f}" for name in names if name in extra)


def cell(evaluation: Evaluation, timed: bool) -> str:
    parts = [evaluation.status.value]
    if timed and evaluation.status == PASSED:
        speed = evaluation.performance
        parts.append(f"{speed.latency_ms:8.4f}  {speed.speedup_factor:7.1f}x")
    return "  ".join([*parts, matched(evaluation)]).strip()


def summary(evaluations: list[Evaluation], timed: bool) -> str:
    """Passed out of all; over those that passed, arithmetic mean speed-up and mean ms."""
    good = [e for e in evaluations if e.status == PASSED]
    text = f"{len(good)}/{len(evaluations)} passed"
    if timed and good:
        speedup = sum(e.performance.speedup_factor for e in good) / len(good)
        latency = sum(e.performance.latency_ms for e in good) / len(good)
        text += f"  {latency:.4f} ms  {speedup:.1f}x"
    return text


def table(
    title: str,
    rows: list[tuple[str, str]],
    results: Mapping[str, Mapping[str, Evaluation]],
    skipped: Mapping[str, str],
    timed: bool,
) -> Table:
    """rows are (workload uuid, label); results is solution -> uuid -> Evaluation."""
    out = Table(title=title, caption=f"in a cell: status, {TIMED if timed else UNTIMED}")
    out.add_column("workload", no_wrap=True)
    for name in [*results, *skipped]:
        out.add_column(name, justify="right")
    for uuid, label in rows:
        cells = []
        for evaluations in results.values():
            ev = evaluations.get(uuid)
            text = cell(ev, timed) if ev else "REFERENCE FAILED"
            cells.append(Text(text, style="green" if ev and ev.status == PASSED else "bold red"))
        out.add_row(label, *cells, *["SKIPPED"] * len(skipped))
    out.add_section()
    totals = [summary(list(evaluations.values()), timed) for evaluations in results.values()]
    out.add_row("all", *totals, *skipped.values())
    return out

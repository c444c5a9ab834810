"""Figure: what a solution takes over the number of tokens for each kind of routing, and over the target."""

from harness.evaluation.sweep_record import TARGETS, Sweep
from harness.report import sweep as report
from harness.report.figures.picture import Picture
from harness.report.figures.style import Panel, over_tokens


def data(sweep: Sweep) -> dict:
    """What is drawn: kind of routing -> [[T, ms, ms over the target]], of right answers to at least one token."""
    timed = [p for p in sweep.points if p.error is None and p.tokens > 0]
    return {kind: [[p.tokens, p.ms, p.ms / p.target_ms] for p in timed if p.kind == kind] for kind in sweep.kinds}


def pictures(sweeps: list[Sweep]) -> list[Picture]:
    """One for each solution."""
    made = []
    for sweep in sweeps:
        name, target = sweep.head.solution, TARGETS[sweep.head.target].words
        panels = (Panel(1, "latency, ms"), Panel(2, f"times the target, {target} ms", log=False))
        made.append(Picture(f"sweep-{name}.svg", over_tokens, (data(sweep), panels, name, report.origin(sweep))))
    return made

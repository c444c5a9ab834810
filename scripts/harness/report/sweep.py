"""A sweep as a table in the terminal, and the recorded ones as the generated block of docs/sweep.md."""

from datetime import datetime, timedelta

from harness.core import paths
from harness.judging import sweep_record
from harness.judging.sweep_record import Point, Sweep
from harness.judging.tolerances import TOLERANCES
from harness.report.table import Cell, Table, decimal
from harness.results import staleness


def mark(point: Point) -> str:
    return "failed" if point.error else "" if point.met else "missed"


def terminal(sweep: Sweep) -> Table:
    """One row per point, one section per kind of routing."""

    def row(p: Point) -> list[Cell]:
        over = p.ms / p.bound_ms if p.ms is not None and p.rows else None  # without rows the bound is almost 0
        cells = [p.kind, *map(str, (p.tokens, p.rows, p.active)), decimal(p.ms, 4), decimal(p.bound_ms, 4)]
        cells += [decimal(over, 2), decimal(p.target_ms, 4), "yes" if p.met else "no"]
        cells += [decimal(p.matched and p.matched[name], 4) for name in TOLERANCES]
        return [Cell(text, mark(p)) for text in cells]

    return Table(
        head=["routing", "T", "rows", "active experts", "ms", "bound ms", "ms/bound", "target ms", "met", *TOLERANCES],
        sections=[[row(p) for p in sweep.points if p.kind == kind] for kind in sweep.kinds],
        title=sweep.head.solution,
        caption=f"{sweep.summary}. Columns named after a tolerance: matched ratio.",
        notes=[f"T={p.tokens} {p.kind}: {p.error}" for p in sweep.points if p.error],
    )


def origin(sweep: Sweep) -> str:
    """Where and when it was measured, and whether the solution's source has changed since."""
    made = sweep.head.provenance
    start = datetime.fromisoformat(made.timestamp)
    end = start + timedelta(seconds=max((p.after_s for p in sweep.points), default=0))
    days = dict.fromkeys(f"{day:%Y-%m-%d}" for day in (start, end))
    stale = staleness.of_record(made, sweep.head.solution) == "stale"
    text = f"{made.hardware}; {made.versions_text}; {made.protocol}; {' to '.join(days)}"
    return text + ("; stale: the source has changed since" if stale else "")


def section(sweep: Sweep) -> str:
    """Markdown: one row per token count, one column per kind of routing."""
    at = {(p.tokens, p.kind): p for p in sweep.points}

    def cell(point: Point | None) -> Cell | None:
        if point is None:
            return None
        if point.error:
            return Cell(point.error, mark(point))
        over = f" ({point.ms / point.bound_ms:.2f})" if point.rows else ""
        return Cell(f"{point.ms:.3f}{over}{'' if point.met else ' *'}", mark(point))

    name = sweep.head.solution
    rows = [[t, *(cell(at.get((t, kind))) for kind in sweep.kinds)] for t in sorted({p.tokens for p in sweep.points})]
    caption = (
        "In a cell: ms, in brackets times the roofline bound (left out where there are no rows); * misses the target."
    )
    table = Table(["T", *sweep.kinds], [rows], words=0, caption=caption).markdown()
    picture = f"![{name} over the token count](sweep-{name}.svg)"
    return "\n\n".join([f"## {name}", picture, f"{sweep.summary}. {origin(sweep)}.", table])


def recorded() -> list[Sweep]:
    """Every sweep below docs/data/sweep/. Raises UserError for a file that is no such record."""
    return [sweep_record.read(path) for path in sorted(paths.SWEEPS.glob("*.jsonl"))]


def block() -> str:
    """The generated part of docs/sweep.md."""
    return "\n\n".join(map(section, recorded()))

"""docs/sweep.md: a recorded sweep of each solution in docs/data/sweep/, as a table, and what its picture shows."""

from harness.core import paths
from harness.evaluation.sweep_point import in_words
from harness.evaluation.sweep_record import SweepPoint
from harness.packing import pack
from harness.report import marked_block

PAGE = paths.DOCS / "sweep.md"
BEGIN = "<!-- sweeps: written by scripts/update_sweep.py -->"
END = "<!-- end of sweeps -->"


def kinds(points: list[SweepPoint]) -> list[str]:
    return list(dict.fromkeys(p.kind for p in points))


def below(points: list[SweepPoint]) -> str:
    """Where a sweep was run, and whether its solution is still what it was."""
    first = points[0]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(first.libs.items()))
    stale = not pack.is_current(first.solution, first.solution_sha1)
    days = [p.timestamp[:10] for p in points]
    when = " to ".join(dict.fromkeys([min(days), max(days)]))
    return f"{first.hardware}; {versions}; {when}" + ("; stale: the source has changed since" if stale else "")


def cell(point: SweepPoint | None) -> str:
    """ms, and in brackets how often the bound; * for more than the target; or what went wrong."""
    if point is None:
        return "-"
    if point.error:
        return f"**{point.error}**"
    over = f" ({point.ms / point.bound_ms:.2f})" if point.rows else ""
    return f"{point.ms:.3f}{over}{'' if point.met else ' *'}"


def section(points: list[SweepPoint]) -> str:
    """Markdown: a row for each token count, a column for each kind of routing."""
    at = {(p.tokens, p.kind): p for p in points}
    met, wrong = sum(p.met for p in points), sum(p.error is not None for p in points)
    name = points[0].solution
    lines = ["| " + " | ".join(["T", *kinds(points)]) + " |", "|" + " ---: |" * (1 + len(kinds(points)))]
    for tokens in sorted({p.tokens for p in points}):
        lines.append("| " + " | ".join([str(tokens), *(cell(at.get((tokens, k))) for k in kinds(points))]) + " |")
    first = points[0]
    said = (
        f"{met} of {len(points)} points are within the target, {in_words(first.target)} ms; {wrong} are wrong at the "
        f"tolerance {first.tolerance}. {below(points)}."
    )
    return "\n".join([f"## {name}", "", f"![{name} over the token count](sweep-{name}.svg)", "", said, "", *lines])


def renewed(page: str, sweeps: list[list[SweepPoint]]) -> str:
    """The page with its block made anew. Raises ValueError for a missing marker."""
    return marked_block.replaced(page, BEGIN, END, "\n\n".join(map(section, sweeps)), PAGE.name)

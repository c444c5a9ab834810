"""The table of docs/tolerances.md, from traces/: which solutions pass at which tolerance, and how narrowly."""

from harness.judging.tolerances import TOLERANCES
from harness.report.blocks.results import passed
from harness.report.table import Table
from harness.results.comparison import TOLERANCE_ORDER, Comparison, Section


def cell(section: Section, solution: str, tolerance: str) -> str:
    """'17/19, 0.607': workloads passed, and the lowest matched ratio where it is known."""
    text = passed(section, solution, tolerance)
    known = [of[solution][tolerance] for of in section.matched.values() if tolerance in of.get(solution, {})]
    return f"{text}, {min(known):.3f}" if known else text


def block(found: Comparison) -> str:
    """Markdown: for each machine, workloads passed and the lowest matched ratio of each solution at each tolerance."""
    parts = []
    for section in found.sections:
        names = sorted({name for group in section.groups for name in group.solutions})
        rows = [[name, *(cell(section, name, tolerance) for tolerance in TOLERANCE_ORDER)] for name in names]
        head = ["solution", *(f"{name} ({TOLERANCES[name].ratio:g})" for name in TOLERANCE_ORDER)]
        parts.append(Table(head, [rows], section.hardware).markdown(titled=True))
    return "\n\n".join(parts)

"""Figure: speed-up and latency of every solution over the number of tokens, with the roofline bound."""

from harness.report.figures.picture import Picture, conditions, run_groups
from harness.report.figures.style import Panel, over_tokens
from harness.results.comparison import Comparison, RunGroup

PANELS = (Panel(2, "speed-up over the reference", more_is_better=True), Panel(1, "latency, ms"))


def data(group: RunGroup) -> dict:
    """What is drawn: {"bound": [[T, ms, speed-up]], solution: [[T, ms, speed-up]]}, of cells that count, by T."""
    found = {"bound": []}
    for row in group.rows:
        if row.bound_speedup is not None:
            found["bound"].append([row.workload.seq_len, row.workload.bound_ms, row.bound_speedup])
        for cell in row.cells.values():
            if cell.counts:
                found.setdefault(cell.solution, []).append([cell.seq_len, cell.latency_ms, cell.speedup])
    return found


def label(name: str, points: list, num_workloads: int) -> str:
    """Tells that a solution lacks workloads."""
    lacks = name != "bound" and len(points) < num_workloads
    return f"{name} ({len(points)} of {num_workloads} workloads)" if lacks else name


def pictures(comparison: Comparison) -> list[Picture]:
    """One for each run group that has a timed solution."""
    made = []
    for section, group, where in run_groups(comparison):
        if set(found := data(group)) > {"bound"}:
            title = f"{section.hardware}, {group.tolerance}"
            curves = {label(name, points, len(group.rows)): points for name, points in found.items()}
            arguments = (curves, PANELS, title, conditions(section, group))
            made.append(Picture(f"speed-{where}.svg", over_tokens, arguments))
    return made

"""Figure: how many times the roofline bound every solution takes, over the number of tokens."""

from statistics import mean

from matplotlib.figure import Figure

from harness.report.figures import style
from harness.report.figures.picture import Picture, of_run_groups
from harness.results.comparison import Comparison, RunGroup


def data(group: RunGroup) -> dict[str, list[list]]:
    """What is drawn: solution -> [[T, latency over the roofline bound]], of cells that count, by T."""
    found = {}
    for row in group.rows:
        for cell in row.cells.values():
            if cell.counts and cell.over_bound:
                found.setdefault(cell.solution, []).append([cell.seq_len, cell.over_bound])
    return found


def draw(found: dict[str, list[list]], title: str, small_print: str) -> Figure:
    """found as `data` returns it, with at least one solution."""
    figure = style.new(title, 5.0, small_print)
    axes = figure.subplots()
    places = style.token_axis(axes, [t for points in found.values() for t, _ in points])
    curves = {name: {places[t]: times for t, times in points} for name, points in found.items()}
    for at, name in enumerate(sorted(curves, key=lambda name: -mean(curves[name].values()))):
        # The fastest on top; where curves coincide the rims of the others show.
        axes.plot(*zip(*curves[name].items(), strict=True), **style.look(name, size=max(7.5 - 0.5 * at, 4)))
    axes.set(ylabel="latency / roofline bound (lower is better)")
    style.linear_from_one(axes, curves)
    lacking = {name: f"{name} ({len(p)}/{len(places)})" for name, p in curves.items() if len(p) < len(places)}
    style.label_ends(axes, {name: list(points.items())[-1] for name, points in curves.items()}, lacking)
    return figure


def pictures(comparison: Comparison, file: str = "speed-{}.svg") -> list[Picture]:
    """One for each run group that has a timed solution and a bound; file: its name, with the machine's for {}."""
    return of_run_groups(comparison, file, "How many times the roofline bound", data, draw)

"""A layer split over the GPUs of a host, and the sum of the ranks' outputs: us by token count.

records/multi_gpu.jsonl holds what examples/multi_gpu/all_reduce.py has measured.
"""

from pathlib import Path

from pydantic import ValidationError

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.schema import Strict, first_fault
from moebench.reports.table import Cell, Table

ALONE = "the layer alone"  # without a sum: nothing that the others compete with
PARTS = {"width": "tensor parallelism", "experts": "expert parallelism"}


class Point(Strict):
    """A line of the record: us a layer of each way to sum, on the slowest rank, in a graph.

    shares: in how many parts the layer is split, of which `ranks` ran. layers_of_weights: how many
    of the graph's layers have weights of their own.
    """

    gpu: str
    torch: str
    ranks: int
    definition: str
    split: str
    shares: int
    solution: str
    source: str | None
    layers: int
    layers_of_weights: int
    rounds: int
    tokens: int
    us: dict[str, float]

    @property
    def run(self) -> tuple:
        """Return what the points of one table have in common."""
        return self.gpu, self.definition, self.split, self.shares, self.ranks, self.solution


def read(path: Path) -> list[Point]:
    """Return the points of a record. Raises UserError that names a line which is none."""
    points = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            points.append(Point.model_validate_json(line))
        except ValidationError as error:
            fault = first_fault(error, "line")
            raise UserError(f"{path.name}: line {number}: {fault}") from error
    return points


def tables(points: list[Point]) -> list[Table]:
    """Return a table for each GPU, layer, split and number of ranks, most ranks first."""
    runs: dict[tuple, list[Point]] = {}
    for point in points:
        runs.setdefault(point.run, []).append(point)
    return [table(runs[run]) for run in sorted(runs, key=most_ranks_first)]


def most_ranks_first(run: tuple) -> tuple:
    gpu, definition, split, shares, ranks, solution = run
    return -ranks, gpu, definition, split != "width", -shares, solution


def table(points: list[Point]) -> Table:
    """Return a row for each token count of a run, and a column for each way to sum."""
    ways = list(points[0].us)
    rows = [time_row(point, ways) for point in sorted(points, key=lambda point: point.tokens)]
    return Table(head=["T", *ways], sections=[rows], title=title(points[0]), words=0)


def time_row(point: Point, ways: list[str]) -> list[Cell | int | None]:
    """Return T and us of each way; the fastest sum is bold."""
    fastest = min(us for way, us in point.us.items() if way != ALONE)
    row: list[Cell | int | None] = [point.tokens]
    for way in ways:
        us = point.us.get(way)
        is_best = way != ALONE and us == fastest
        row.append(None if us is None else Cell(f"{us:.1f}", "best" if is_best else ""))
    return row


def title(point: Point) -> str:
    """Return "NVIDIA H200: deepseek-v3-ep1, width in 4 (tensor parallelism), 4 of 4 ranks"."""
    part = f"{point.split} in {point.shares} ({PARTS[point.split]})"
    return f"{point.gpu}: {point.definition}, {part}, {point.ranks} of {point.shares} ranks"


def block() -> str:
    """Return all tables of records/multi_gpu.jsonl, as Markdown."""
    drawn = tables(read(paths.MULTI_GPU))
    return "\n\n".join(each.markdown(titled=True) for each in drawn)

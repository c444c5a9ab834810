"""A layer split over the GPUs of a host, and the sum of the ranks' outputs: us by token count.

records/multi_gpu.jsonl holds what examples/multi_gpu/all_reduce.py has measured.
"""

from moebench.core import paths
from moebench.core.schema import Strict, read_lines
from moebench.reports.table import Cell, Row, Table

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
    def table_key(self) -> tuple:
        """Return what the points of one table have in common, sorted as the tables are: most ranks
        first.
        """
        split = (self.split != "width", -self.shares)
        return -self.ranks, self.gpu, self.definition, *split, self.solution

    @property
    def title(self) -> str:
        """Return "NVIDIA H200: deepseek-v3-ep1, width in 4 (tensor parallelism), 4 of 4 ranks"."""
        parallelism = PARTS[self.split]
        part = f"{self.split} in {self.shares} ({parallelism})"
        ranks = f"{self.ranks} of {self.shares} ranks"
        return f"{self.gpu}: {self.definition}, {part}, {ranks}"


def recorded() -> list[Point]:
    """Return the points of the record. Raises UserError that names a line which is none."""
    return read_lines(paths.MULTI_GPU, Point)


def tables(points: list[Point]) -> list[Table]:
    """Return a table for each GPU, layer, split and number of ranks, most ranks first."""
    points_of_table: dict[tuple, list[Point]] = {}
    for point in sorted(points, key=lambda point: (*point.table_key, point.tokens)):
        points_of_table.setdefault(point.table_key, []).append(point)
    return [table(of_table) for of_table in points_of_table.values()]


def table(points: list[Point]) -> Table:
    """Return a row for each point, and a column for each way to sum."""
    ways = list(points[0].us)
    rows = [time_row(point, ways) for point in points]
    return Table(["T", *ways], [rows], title=points[0].title, words=0)


def time_row(point: Point, ways: list[str]) -> Row:
    """Return T and us of each way; the fastest sum is bold."""
    sums = dict(point.us)
    sums.pop(ALONE, None)
    fastest = min(sums.values())

    row: Row = [point.tokens]
    for way in ways:
        us = point.us.get(way)
        if us is None:
            row.append(None)
        elif sums.get(way) == fastest:
            row.append(Cell(f"{us:.1f}", "best"))
        else:
            row.append(Cell(f"{us:.1f}"))
    return row


def block() -> str:
    """Return all tables of records/multi_gpu.jsonl, as Markdown."""
    points = recorded()
    texts = [each.markdown(titled=True) for each in tables(points)]
    return "\n\n".join(texts)

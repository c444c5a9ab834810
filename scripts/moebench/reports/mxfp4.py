"""Layers with MXFP4 experts side by side, by token count.

records/mxfp4_peers.jsonl holds what tools/mxfp4_peers.py and like programs have measured.
"""

import statistics

from moebench.core import paths
from moebench.core.schema import Strict, read_lines
from moebench.reports.table import Cell, Table, decimal


class Point(Strict):
    """A line of the record: one call in a graph, L2 flushed before it, weights prepared ahead.

    card: tells GPUs of one name apart. matched: the share of elements inside each tolerance.
    """

    gpu: str
    card: int
    driver: str
    torch: str
    triton: str
    date: str
    definition: str
    tokens: int
    peer: str
    us: float
    prepared_ms: float
    matched: dict[str, float]


def recorded() -> list[Point]:
    """Return the points of the record. Raises UserError that names a line which is none."""
    return read_lines(paths.MXFP4_PEERS, Point)


def tables(points: list[Point]) -> list[Table]:
    """Return a table for each GPU and definition, in their order in the record."""
    runs: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        runs.setdefault((point.gpu, point.definition), []).append(point)
    return [table(run) for run in runs.values()]


def table(points: list[Point]) -> Table:
    """Return a row for each token count, with the ms of each peer; the least is bold."""
    peers = list(dict.fromkeys(point.peer for point in points))
    rows = []
    for tokens in sorted({point.tokens for point in points}):
        of_tokens = [point for point in points if point.tokens == tokens]
        rows.append([tokens, *cells(of_tokens, peers)])

    first = points[0]
    title = f"{first.gpu}: {first.definition}, ms"
    return Table(head=["T", *peers], sections=[rows], title=title, words=0)


def cells(points: list[Point], peers: list[str]) -> list[Cell]:
    """Return the median ms of each peer at one token count, "-" where it was not measured."""
    times = []
    for peer in peers:
        us = [point.us for point in points if point.peer == peer]
        times.append(statistics.median(us) / 1e3 if us else None)

    fastest = min(ms for ms in times if ms is not None)
    return [Cell(decimal(ms, 3), "best" if ms == fastest else "") for ms in times]


def block() -> str:
    """Return all tables of records/mxfp4_peers.jsonl, as Markdown."""
    drawn = tables(recorded())
    return "\n\n".join(each.markdown(titled=True) for each in drawn)

"""Tables of a layer's time by token count, done in several ways: a column for each way, the fastest
in bold. docs/pages.py puts them into pages, and docs/computed.py takes numbers for sentences from
the same two records:

records/multi_gpu.jsonl    a layer split over the GPUs of a host; a way is one to sum the ranks'
                           outputs. Measured by examples/multi_gpu/all_reduce.py.
records/mxfp4_peers.jsonl  a layer with MXFP4 experts; a way is a peer, kernels of this or another
                           project. Measured by tools/mxfp4_peers.
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import TypeVar

import pandas as pd

from moebench.core import paths
from moebench.core.schema import Strict, read_lines
from moebench.judging.tolerances import TOLERANCES
from moebench.reports.table import Cell, Table, decimals, token_heads

# in place of a way to sum: the time without any; never in bold
ALONE = "the layer alone"
SPLITS = {"width": "tensor parallelism", "experts": "expert parallelism"}


class AllReducePoint(Strict):
    """A line of records/multi_gpu.jsonl: us a layer, on the slowest rank, in a graph.

    split: a key of SPLITS. shares: in how many parts the layer is split, of which `ranks` ran.
    layers_of_weights: how many of the graph's layers have weights of their own. us: way to sum ->
    time, {"the layer alone": 37.4, "run_allreduce": 40.4}.
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
        """Return the key that the points of a table share. Sorted by it, most ranks come first."""
        split = (self.split != "width", -self.shares)
        return -self.ranks, self.gpu, self.definition, *split, self.solution

    @property
    def title(self) -> str:
        """Return "NVIDIA H200: deepseek-v3-ep1, width in 4 (tensor parallelism), 4 of 4 ranks"."""
        kind = SPLITS[self.split]
        part = f"{self.split} in {self.shares} ({kind})"
        ranks = f"{self.ranks} of {self.shares} ranks"
        return f"{self.gpu}: {self.definition}, {part}, {ranks}"


class PeerPoint(Strict):
    """A line of records/mxfp4_peers.jsonl: a call of a peer in a graph, with L2 flushed before it
    and weights prepared ahead.

    card: tells GPUs of one name apart. us: of the call. prepared_ms: of preparing the weights.
    matched: tolerance -> the share of elements inside it.
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

    @property
    def is_right(self) -> bool:
        """Return whether the output was inside the relaxed tolerance."""
        return self.matched["relaxed"] >= TOLERANCES["relaxed"].ratio


Point = TypeVar("Point", bound=Strict)


def all_reduce_points() -> list[AllReducePoint]:
    """Return the points of records/multi_gpu.jsonl. Raises UserError for a line that is none."""
    return read_lines(paths.MULTI_GPU, AllReducePoint)


def peer_points() -> list[PeerPoint]:
    """Return the points of records/mxfp4_peers.jsonl. Raises UserError for a line that is none."""
    return read_lines(paths.MXFP4_PEERS, PeerPoint)


def all_reduce_tables(points: list[AllReducePoint]) -> list[Table]:
    """Return a table for each GPU, layer, split and number of ranks, most ranks first: us."""
    in_order = sorted(points, key=lambda point: (*point.table_key, point.tokens))
    tables = []
    for group in grouped(in_order, lambda point: point.table_key):
        tokens = [point.tokens for point in group]
        times = pd.DataFrame([point.us for point in group], index=tokens)
        tables.append(times_table(times, 1, group[0].title))
    return tables


def peer_tables(points: list[PeerPoint]) -> list[Table]:
    """Return a table for each GPU and definition: the median ms of each peer over its points."""
    tables = []
    for group in grouped(points, lambda point: (point.gpu, point.definition)):
        ms = peer_times(group) / 1e3
        wrong = {(point.tokens, point.peer) for point in group if not point.is_right}
        title = f"{group[0].gpu}: {group[0].definition}, ms"
        tables.append(times_table(ms, 3, title, wrong))
    return tables


def over_fp8_table(points: list[PeerPoint]) -> Table:
    """Return a peer's time over that of its FP8 layer, a row for each definition and peer that was
    timed in FP8, too, a column for each T: the median over the GPUs that timed both.
    """
    rows = []
    for point in points:
        card = (point.definition, point.tokens, point.gpu, point.card)
        rows.append([*card, point.peer, point.us])
    keys = ["definition", "T", "gpu", "card"]
    frame = pd.DataFrame(rows, columns=[*keys, "peer", "us"])

    us = frame.pivot_table(index=keys, columns="peer", values="us", aggfunc="median")
    ratios = {}
    for peer in us:
        in_fp8 = f"{peer}, in FP8"
        if in_fp8 in us:
            ratios[peer] = us[peer] / us[in_fp8]

    ratio = pd.DataFrame(ratios).rename_axis(columns="peer").stack().dropna()
    medians = ratio.groupby(["definition", "peer", "T"]).median().unstack("T")
    texts = decimals(medians, 2)
    texts.columns = token_heads(texts.columns)
    return Table.of_frame(texts.reset_index(), word_columns=2)


def peer_times(points: list[PeerPoint]) -> pd.DataFrame:
    """Return the median us of each peer, a column, at each T; NaN where it was not timed."""
    rows = [{"T": point.tokens, point.peer: point.us} for point in points]
    return pd.DataFrame(rows).groupby("T").median()


def grouped(
    points: list[Point], key: Callable[[Point], Hashable]
) -> Iterable[list[Point]]:
    """Return lists of points that share a key, in the order of the lists' first points."""
    groups = {}
    for point in points:
        groups.setdefault(key(point), []).append(point)
    return groups.values()


def times_table(
    times: pd.DataFrame,
    digits: int,
    title: str,
    wrong: Collection[tuple[int, str]] = (),
) -> Table:
    """Return a row for each T, the index of `times`, and a column for each way.

    times: NaN where a way was not timed. wrong: (T, way) whose output was wrong.
    """
    right = times.drop(columns=ALONE, errors="ignore")
    table = decimals(times, digits)
    for tokens, way in wrong:
        right.loc[tokens, way] = float("nan")
        table.loc[tokens, way] += ", wrong"

    fastest = right.min(axis="columns")
    for way in right:
        texts = table[way]
        is_fastest = right[way] == fastest
        table[way] = texts.mask(is_fastest, texts.map(best_cell))
    return Table.of_frame(table.reset_index(names="T"), title=title, word_columns=0)


def best_cell(text: str) -> Cell:
    return Cell(text, "best")


def markdown(tables: list[Table]) -> str:
    """Return all tables, each below its title."""
    return "\n\n".join(table.markdown(titled=True) for table in tables)

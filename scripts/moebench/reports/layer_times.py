"""Tables of a layer's time by token count, done in several ways: a column for each way, the fastest
in bold. docs/pages.py puts them into pages, and docs/computed.py takes numbers for sentences from
the same two records:

records/multi_gpu.jsonl    a layer split over the GPUs of a host; a way is one to sum the ranks'
                           outputs. Measured by examples/multi_gpu/all_reduce.py.
records/mxfp4_peers.jsonl  a layer with MXFP4 experts; a way is a peer, kernels of this or another
                           project. Measured by tools/mxfp4_peers.
"""

from collections.abc import Collection
from itertools import groupby
from operator import attrgetter

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


def all_reduce_points() -> list[AllReducePoint]:
    """Return the points of records/multi_gpu.jsonl. Raises UserError for a line that is none."""
    return read_lines(paths.MULTI_GPU, AllReducePoint)


def peer_rows() -> pd.DataFrame:
    """Return `rows_of` the points of records/mxfp4_peers.jsonl.

    Raises UserError for a line that is none.
    """
    return rows_of(read_lines(paths.MXFP4_PEERS, PeerPoint))


def rows_of(points: list[PeerPoint]) -> pd.DataFrame:
    """Return a row for each point: its fields, and whether it `is_right`."""
    fields = list(PeerPoint.model_fields)
    rows = pd.DataFrame([point.model_dump() for point in points], columns=fields)
    return rows.assign(is_right=[point.is_right for point in points])


def all_reduce_tables(points: list[AllReducePoint]) -> list[Table]:
    """Return a table for each GPU, layer, split and number of ranks, most ranks first: us."""
    in_order = sorted(points, key=lambda point: (*point.table_key, point.tokens))
    tables = []
    for _, group in groupby(in_order, attrgetter("table_key")):
        group = list(group)
        tokens = [point.tokens for point in group]
        times = pd.DataFrame([point.us for point in group], index=tokens)
        tables.append(times_table(times, 1, group[0].title))
    return tables


def peer_tables(rows: pd.DataFrame) -> list[Table]:
    """Return a table for each GPU and definition: the median ms of each peer over its points."""
    tables = []
    for (gpu, definition), points in rows.groupby(["gpu", "definition"], sort=False):
        wrong = points[~points.is_right]
        places = set(zip(wrong.tokens, wrong.peer, strict=True))
        title = f"{gpu}: {definition}, ms"
        tables.append(times_table(peer_times(points) / 1e3, 3, title, places))
    return tables


def over_fp8_table(rows: pd.DataFrame) -> Table:
    """Return a peer's time over that of its FP8 layer, a row for each definition and peer that was
    timed in FP8, too, a column for each T: the median over the GPUs that timed both.
    """
    card = ["definition", "tokens", "gpu", "card"]
    us = rows.groupby([*card, "peer"]).us.median().unstack("peer")
    ratios = {}
    for peer in us:
        in_fp8 = f"{peer}, in FP8"
        if in_fp8 in us:
            ratios[peer] = us[peer] / us[in_fp8]

    ratio = pd.DataFrame(ratios).rename_axis(columns="peer").stack().dropna()
    of_peer = ratio.groupby(["definition", "peer", "tokens"])
    texts = decimals(of_peer.median().unstack("tokens"), 2)
    texts.columns = token_heads(texts.columns)
    return Table.of_frame(texts.reset_index(), word_columns=2)


def peer_times(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the median us of each peer, a column, at each T; NaN where it was not timed."""
    us = rows.groupby(["tokens", "peer"]).us.median().unstack("peer")
    return us[rows.peer.unique()]


def times_table(
    times: pd.DataFrame,
    digits: int,
    title: str,
    wrong: Collection[tuple[int, str]] = (),
) -> Table:
    """Return a row for each T, the index of `times`, and a column for each way.

    times: NaN where a way was not timed. wrong: (T, way) whose output was wrong.
    """
    right = times.assign(**{ALONE: float("nan")})
    table = decimals(times, digits)
    for tokens, way in wrong:
        right.loc[tokens, way] = float("nan")
        table.loc[tokens, way] += ", wrong"

    fastest = right.min(axis="columns")
    for way in table:
        texts = table[way]
        is_fastest = right[way] == fastest
        table[way] = texts.mask(is_fastest, texts.map(best_cell))
    return Table.of_frame(table.reset_index(names="T"), title=title, word_columns=0)


def best_cell(text: str) -> Cell:
    return Cell(text, "best")


def markdown(tables: list[Table]) -> str:
    """Return all tables, each below its title."""
    return "\n\n".join(table.markdown(titled=True) for table in tables)

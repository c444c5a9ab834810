"""The pages' tables with a row for each model: which solution to use, and how many times the
roofline bound it takes, from traces of one layer and from served records of all layers.

docs/pages.py draws these tables of the layers that `measured_layers` returns.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from moebench.models.layer import ModelLayer, layers, weight_bytes
from moebench.operators.roofline import MEASURED_ON
from moebench.operators.workloads import recorded_counts
from moebench.reports.comparison import times_by_tokens
from moebench.reports.served import title
from moebench.reports.table import (
    Cell,
    Row,
    Table,
    decimal,
    decimals,
    frame_rows,
    token_heads,
)
from moebench.results.spread import nearest_tokens
from moebench.results.summary import (
    SHOWN_TOLERANCE,
    base_of,
    best_solution,
    by_solution,
    counted,
    speedup_over_others,
)
from moebench.served.record import Point, ServedRecord

# T of the columns: in tables of one layer, of all layers, and of ranks with a slice of every expert
TOKENS = (1, 32, 1024, 8192)
AHEAD_TOKENS = (1, 8, 32, 128, 1024, 4096)
SERVED_TOKENS = (1, 8, 32, 128, 1024)
TIMES_TOKENS = (1, 8, 32, 64, 128, 256, 1024, 4096, 16384)

MAIN_LAYER = "full"  # DeepSeek-V3's layer on one rank of eight
GPU_GB = 141  # memory of MEASURED_ON
TOO_LARGE = "✗"  # behind a model if the weights of all its layers exceed that memory
SPEEDS_CAPTION = (
    "Latency over the roofline bound. In brackets: T of the nearest workload, where there is none "
    "of that T. At T=1 with the active experts of that one routing on the rank."
)


@dataclass(frozen=True)
class MeasuredLayer:
    """A model's layer and its rows of `measurements.load`, on MEASURED_ON, of one clock."""

    layer: ModelLayer
    rows: pd.DataFrame


def is_any(layer: ModelLayer) -> bool:
    return True


def is_shard(layer: ModelLayer) -> bool:
    """Whether a layer has a slice of every expert: that of a tensor-parallel rank."""
    return layer.split.tensor > 1


def is_whole(layer: ModelLayer) -> bool:
    """Whether a layer's experts are whole. Not so the main layer, which has tables of its own."""
    return not is_shard(layer) and layer.key != MAIN_LAYER


def measured_layers(
    rows: pd.DataFrame, is_shown: Callable[[ModelLayer], bool] = is_any
) -> list[MeasuredLayer]:
    """Return the layers of a kind that have rows on MEASURED_ON, the GPU of the roofline bounds.

    rows: of `measurements.load`, of every definition, of one clock.
    """
    on_gpu = rows[rows.hardware == MEASURED_ON]
    measured = []
    for layer in filter(is_shown, layers()):
        layer_rows = on_gpu[on_gpu.definition == layer.definition]
        if len(layer_rows):
            measured.append(MeasuredLayer(layer, layer_rows))
    return measured


def shown_name(layer: ModelLayer) -> str:
    """Return a layer's name, marked if the weights of all such layers exceed one GPU's memory."""
    gigabytes = weight_bytes(layer) * layer.count / 1e9
    if gigabytes > GPU_GB:
        return f"{layer.name} {TOO_LARGE}"
    return layer.name


def ahead_table(measured: list[MeasuredLayer]) -> Table:
    """Return the table of `ahead_text` at AHEAD_TOKENS, with the fastest solutions of each layer,
    each variant by the name of its base.
    """
    table_rows = []
    for each in measured:
        timed = counted(each.rows).sort_values("ms")
        fastest = []
        texts = []
        for tokens in AHEAD_TOKENS:
            points = list(timed[timed.tokens == tokens].itertuples())
            texts.append(ahead_text(points))
            if points:
                fastest.append(base_of(points[0].solution))
        names = ", ".join(dict.fromkeys(fastest))
        table_rows.append([shown_name(each.layer), names, *texts])
    head = ["model", "fastest", *token_heads(AHEAD_TOKENS)]
    return Table(head, [table_rows], word_columns=2)


def recommended_table(measured: list[MeasuredLayer]) -> Table:
    """Return the table of which solution to use for each layer."""
    table_rows = []
    for each in measured:
        table_rows.append([shown_name(each.layer), *recommended_cells(each.rows)])
    head = ["model", f"at {SHOWN_TOLERANCE}", "at default", "ms/bound", "over the next"]
    return Table(head, [table_rows], word_columns=3)


def recommended_cells(rows: pd.DataFrame) -> Row:
    """Return the solution to use at SHOWN_TOLERANCE and the one to use at the default tolerance;
    then the first one's latency over the bound, and how many times as fast as the next one it is.

    rows: of one layer.
    """
    means = by_solution(rows)
    best = best_solution(means)
    if best is None:
        return ["none passed" if rows.counts.any() else "stale", None, None, None]

    at_default = best_solution(means, "default")
    over_bound = decimal(means.over_bound[best], 2)
    over_next = decimal(speedup_over_others(rows, best).min(), 2)
    return [Cell(best, "best"), at_default, over_bound, over_next]


def speeds_table(measured: list[MeasuredLayer]) -> Table:
    """Return the table of latency over the bound at TOKENS, of each layer's best solution."""
    table_rows = []
    for each in measured:
        layer = each.layer
        table_rows.append([layer.name, *speed_texts(each.rows, layer.key)])
    return Table(["model", *token_heads(TOKENS)], [table_rows], caption=SPEEDS_CAPTION)


def speed_texts(rows: pd.DataFrame, layer_key: str) -> Row:
    """Return the best solution's latency over the bound at the workloads nearest to TOKENS: "1.25",
    or "1.25 (57)" where the nearest workload has T=57.

    rows: of one layer.
    """
    shown = counted(rows)
    best = best_solution(by_solution(rows))
    of_best = shown[shown.solution == best]
    of_best = of_best.drop_duplicates("tokens").set_index("tokens")
    if not len(of_best):
        return [None] * len(TOKENS)

    texts = []
    for tokens in TOKENS:
        measured_tokens = nearest_tokens(tokens, of_best.index)
        text = f"{of_best.over_bound[measured_tokens]:.2f}"
        if measured_tokens != tokens:
            text += f" ({measured_tokens})"
        texts.append(text)

    if 1 in of_best.index:
        # at T=1 the bound depends on how many of the token's experts are local
        active = recorded_counts(layer_key)[of_best.uuid[1]].active
        texts[0] += f", {active} active"
    return texts


def times_table(measured: list[MeasuredLayer]) -> Table:
    """Return the table of ms at TIMES_TOKENS: each layer's bound and solutions."""
    sections = [times_rows(each.layer.name, each.rows) for each in measured]
    head = ["model", "solution", *token_heads(TIMES_TOKENS)]
    return Table(head, sections, word_columns=2, key_columns=2)


def times_rows(name: str, rows: pd.DataFrame) -> list[Row]:
    """Return the rows of one layer, that of the bound first."""
    shown = counted(rows)
    times = times_by_tokens(shown, TIMES_TOKENS)
    in_order = times.reindex(by_solution(rows).index).dropna(how="all")

    bounds = shown.groupby("tokens").bound_ms.first().reindex(TIMES_TOKENS)
    table_rows = [[name, "bound", *decimals(bounds, 3)]]
    for row in frame_rows(in_order.reset_index()):
        table_rows.append([name, *row])
    return table_rows


def served(records: list[ServedRecord]) -> Table:
    """Return the table of `ahead_text` at SERVED_TOKENS, a row for each served record."""
    table_rows = []
    for record in records:
        if record.has_bound:
            points = [record.timed_points(tokens) for tokens in SERVED_TOKENS]
            table_rows.append([title(record.head), *map(ahead_text, points)])
    return Table(["model", *token_heads(SERVED_TOKENS)], [table_rows])


def ahead_text(timed: list[Point]) -> str | None:
    """Return the fastest solution's latency over the bound, and in brackets how many times as fast
    it is as the next one that is no variant of it: "1.25 (1.20)".

    None where no such other solution was timed. timed: what was measured at one T, the fastest
    first.
    """
    if not timed:
        return None

    fastest = timed[0]
    base = base_of(fastest.solution)
    others = [point.ms for point in timed if base_of(point.solution) != base]
    if not others:
        return None

    over_bound = fastest.ms / fastest.bound_ms
    over_next = others[0] / fastest.ms
    return f"{over_bound:.2f} ({over_next:.2f})"

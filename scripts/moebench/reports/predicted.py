"""What all MoE layers of a model would take in a CUDA graph, where `moebench served` has recorded
none or not all of them. docs/pages.py shows `table`, and `moebench served` `predicted_notes`.

A layer is predicted to take as many times its roofline bound as the nearest recorded layer does at
the same number of tokens. Nearest is the layer whose bounds are nearest, as latency over the bound
depends on how long a layer takes more than on its sizes. How far predictions are off is computed by
predicting each recorded model from the others.
"""

import math
from statistics import median

from moebench.models.expected_bound import expected_bound
from moebench.models.layer import ModelLayer, layers
from moebench.operators import catalogue
from moebench.operators.layers import cached
from moebench.reports.models import SERVED_TOKENS
from moebench.reports.table import Row, Table, token_heads
from moebench.served.record import ServedRecord

CAPTION = (
    "Predicted, not measured: ms of a pass over all MoE layers of the model by the fastest "
    "solution. A layer takes as many times its mean roofline bound as the layer that it is "
    "predicted from takes of its own, at the same T."
)


def table(records: list[ServedRecord]) -> Table:
    """Return a row for each model's layer of which not all layers were recorded."""
    of_models = [each for each in records if each.has_bound and each.head.model_layer]
    record_of_layer = {record.head.model_layer.key: record for record in of_models}
    sources = list(record_of_layer.values())

    rows = []
    for layer in layers():
        record = record_of_layer.get(layer.key)
        if record is None:
            record = nearest_record(layer, sources)
        elif record.head.layers >= layer.count:
            continue
        rows.append(table_row(layer, record))

    head = ["model", "predicted from", *token_heads(SERVED_TOKENS)]
    caption = f"{CAPTION} {accuracy(sources)}"
    return Table(head, [rows], caption=caption, word_columns=2)


def table_row(layer: ModelLayer, record: ServedRecord) -> Row:
    """Return a row of the table: the layer, what it is predicted from, and ms."""
    source = record.head.model_layer
    name = source.name
    if source.key == layer.key:
        name += f", {record.head.layers} of {layer.count} layers"

    row = [layer.name, name]
    for tokens in SERVED_TOKENS:
        ms = predicted_ms(layer, record, tokens)
        row.append(None if ms is None else f"{ms:.2f}")
    return row


def predicted_ms(layer: ModelLayer, record: ServedRecord, tokens: int) -> float | None:
    """Return the time of a pass over all layers of a model, from a record of the layer itself or of
    another; None where the record has none.
    """
    timed = record.timed_points(tokens)
    if not timed:
        return None

    fastest = timed[0]
    if record.head.model_layer.key == layer.key:
        ms_of_layer = fastest.ms / record.head.layers
        return ms_of_layer * layer.count
    over_bound = fastest.ms / fastest.bound_ms
    return over_bound * mean_bound(layer.key, tokens) * layer.count


def predicted_notes(record: ServedRecord) -> list[str]:
    """Return a note that says what all layers of the record's model would take; [] where all layers
    were measured, or none on a GPU.
    """
    head = record.head
    on_gpu = any(point.graph for point in record.points)
    if not on_gpu or not head.of_model or head.layers >= head.of_model:
        return []

    layer = record.head.model_layer
    texts = []
    for tokens in record.tokens:
        ms = predicted_ms(layer, record, tokens)
        if ms is not None:
            texts.append(f"T={tokens} {ms:.3f}")
    return [
        f"Predicted, not measured: ms of all {head.of_model} layers by the fastest solution, from "
        f"these {head.layers}: {', '.join(texts)}"
    ]


@cached
def mean_bound(key: str, tokens: int) -> float:
    """Return the roofline bound of one layer in ms, a mean over routings."""
    return expected_bound(tokens, catalogue.layer_sizes()[key]).ms


def nearest_record(layer: ModelLayer, records: list[ServedRecord]) -> ServedRecord:
    """Return the record of the layer whose bound is nearest."""
    return min(records, key=lambda record: distance(layer, record))


def distance(layer: ModelLayer, record: ServedRecord) -> float:
    """Return how far apart the bounds of two layers are: factors of e, summed over token counts."""
    recorded = record.head.model_layer
    total = 0.0
    for tokens in SERVED_TOKENS:
        factor = mean_bound(layer.key, tokens) / mean_bound(recorded.key, tokens)
        total += abs(math.log(factor))
    return total


def accuracy(records: list[ServedRecord]) -> str:
    """Return how far predictions of the recorded models are off, each from the others; "" where
    there is nothing to compare.
    """
    if len(records) < 2:
        return ""

    errors = []
    for record in records:
        layer = record.head.model_layer
        others = [each for each in records if each is not record]
        source = nearest_record(layer, others)
        for tokens in SERVED_TOKENS:
            guess = predicted_ms(layer, source, tokens)
            actual = predicted_ms(layer, record, tokens)
            if guess and actual:
                errors.append(abs(guess / actual - 1))

    if not errors:
        return ""
    off_by = f"{median(errors):.0%} in the median and {max(errors):.0%} at most"
    return f"The recorded models, predicted so from each other, are off by {off_by}."

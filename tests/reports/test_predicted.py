"""What `served` has not measured: predicted from the nearest record, and named after it."""

import re

import pytest
from moebench.models.layer import layer_of
from moebench.reports import predicted, served

RECORDS = [record for record in served.recorded() if record.has_bound]
BY_KEY = {record.head.model_layer.key: record for record in RECORDS}


@pytest.fixture
def table_of(monkeypatch):
    """Return a function that predicts these layers alone, by key, at T = 8."""
    monkeypatch.setattr(predicted, "SERVED_TOKENS", (8,))

    def table(*keys):
        monkeypatch.setattr(
            predicted, "layers", lambda: [layer_of(key) for key in keys]
        )
        return predicted.table(RECORDS)

    return table


def least_ms(record):
    """Return the ms of the fastest solution with 8 tokens."""
    times = [point.ms for point in record.points_at(8)]
    return min(filter(None, times))


def scaled_ms(record):
    """Return the ms of all layers of a model, of which some were recorded, with 8 tokens."""
    return least_ms(record) / record.head.layers * record.head.of_model


def test_a_model_of_which_all_layers_were_recorded_is_not_predicted(table_of):
    (rows,) = table_of("qwen3-30b", "glm-5-ep8").sections
    assert [row[0] for row in rows] == ["GLM-5 EP8"]


def test_layers_that_did_not_fit_take_as_long_as_those_that_did(table_of):
    record = BY_KEY["minimax-m2"]
    head = record.head
    ((_, source, ms),) = table_of("minimax-m2").sections[0]
    assert head.layers < head.of_model
    assert f"{head.layers} of {head.of_model}" in source
    assert float(ms) == pytest.approx(scaled_ms(record), abs=0.005)


def test_the_terminal_predicts_the_layers_that_did_not_fit_and_says_so():
    record = BY_KEY["minimax-m2"]
    (note,) = predicted.predicted_notes(record)
    assert note.startswith("Predicted, not measured")
    ms = float(re.search(r"\bT=8 ([\d.]+)", note)[1])
    assert ms == pytest.approx(scaled_ms(record), abs=0.0005)

    whole = BY_KEY["qwen3-30b"]
    assert predicted.predicted_notes(whole) == []


def test_another_layer_takes_as_many_times_its_bound_as_the_nearest(table_of):
    layer = layer_of("glm-5-ep8")
    ((_, source, ms),) = table_of(layer.key).sections[0]
    nearest = min(RECORDS, key=lambda record: predicted.distance(layer, record))
    assert source == nearest.head.model_layer.name

    first, *_ = nearest.points_at(8)
    over_bound = least_ms(nearest) / first.bound_ms
    layer_ms = over_bound * predicted.mean_bound(layer.key, 8)
    assert float(ms) == pytest.approx(layer_ms * layer.count, abs=0.005)

"""Tables of servers with a solution in their layers, from records/engines/."""

import json

import pytest
from moebench.reports import engines


@pytest.fixture
def written(monkeypatch, tmp_path):
    """A function that writes records to a file of records/engines/."""
    monkeypatch.setattr(engines, "ENGINES", tmp_path)

    def write(name, records):
        lines = [json.dumps(record) + "\n" for record in records]
        (tmp_path / name).write_text("".join(lines))

    return write


def run(backend, concurrency, tpot, date="2026-11-26 02:00", layers=2):
    return {
        "date": date,
        "model": {"num_hidden_layers": layers},
        "backend": backend,
        "concurrency": concurrency,
        "median_tpot_ms": tpot,
        "median_ttft_ms": 10 * tpot,
        "output_throughput": 1000 / tpot,
    }


def test_a_server_is_compared_with_the_first_by_medians_of_its_runs(written):
    runs = [run("triton", 8, tpot) for tpot in (3.0, 5.0, 4.0)]
    written("vllm.jsonl", [*runs, run("solution", 8, 3.0), run("solution", 1, 2.0)])

    table = engines.servers_table(
        engines.server_runs("vllm", 2), ["triton", "solution"]
    )
    (row_of_1, row_of_8) = table.rows
    assert row_of_1[:3] == [1, "-", "2.000"]
    assert row_of_8 == [8, "4.000", "3.000 (-25.0%)", "40.0", "30.0", "250", "333"]

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


def test_a_table_has_the_runs_of_its_model_and_dates(written):
    others = [run("triton", 8, 9.0, date="2026-11-27"), run("triton", 8, 9.0, layers=3)]
    written("vllm.jsonl", [run("triton", 8, 4.0), *others])

    runs = engines.server_runs("vllm", 2, until="2026-11-27")
    (row,) = engines.servers_table(runs, ["triton"]).rows
    assert row[:2] == [8, "4.000"]


def test_starts_of_sglang_are_one_row_and_triton_is_the_first(written):
    def one_batch(name, prefill):
        return {
            "run_name": name,
            "prefill_latency": prefill,
            "median_decode_latency": 0.005,
            "overall_throughput": 100.0,
            "experts_ms": {"prefill": 24.0, "decode": 2.4},
            "step_ms": {"prefill": 48.0, "decode": 4.8},
        }

    runs = [
        one_batch("hopper_fused", 0.1),
        one_batch("triton", 0.1),
        one_batch("triton_2", 0.3),
    ]
    written("sglang.jsonl", runs)

    triton, ours = engines.sglang_table(24).rows
    assert triton[1] == "200.0"
    assert ours[1:3] == ["100.0 (-50.0%)", "5.000 (+0.0%)"]
    assert ours[4:] == ["1.00", "0.1000", "50.0%", "50.0%"]

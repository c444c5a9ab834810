"""The bound that solutions are compared with."""

import json

import committed_workloads
import pytest
import torch
from moebench import cli
from moebench.core import paths
from moebench.operators import catalogue, roofline, workloads
from moebench.operators.workloads import cases_by_uuid


def test_a_bound_divides_by_the_best_reading_of_its_kind_of_gpu(tmp_path):
    file = tmp_path / "ceilings.jsonl"
    rates = [
        {"hardware": "a", "bytes": 3.0, "fp8": 9.0},
        {"hardware": "a", "bytes": 4.0, "fp8": 8.0, "bf16": 2.0},
        {"hardware": "b", "bytes": 5.0, "fp8": 7.0},
    ]
    readings = [json.dumps({"date": "2026-01-01", "of": "x"} | each) for each in rates]
    file.write_text("\n".join(readings))
    assert roofline.ceilings(file) == {
        "a": {"bytes": 4.0, "fp8": 9.0, "bf16": 2.0},
        "b": {"bytes": 5.0, "fp8": 7.0},
    }


def test_both_gpus_of_the_tables_have_all_rates():
    for gpu in (roofline.MEASURED_ON, roofline.H100):
        assert set(roofline.CEILINGS[gpu]) == set(roofline.RATES)


def bound_of(layer_key, name):
    """Return the bound of a case."""
    cases = {case.name: case for case in catalogue.SIGMOID_BIAS.cases(layer_key)}
    case = cases[name]
    return committed_workloads.bound(layer_key, case.uuid)


def test_an_active_expert_is_44_megabytes():
    """The figure of the design, from which memory-bound bounds follow."""
    bound = bound_of("full", "T=7")
    assert bound.bytes / bound.active == pytest.approx(44e6, rel=0.02)
    assert bound.ms == bound.memory_ms


def test_many_tokens_are_bound_by_compute():
    bound = bound_of("full", "T=14107")
    assert bound.flops == 2 * bound.rows * 3 * 2048 * 7168
    assert bound.ms == bound.compute_ms > bound.memory_ms


def test_without_a_local_row_only_routing_and_output_are_moved():
    bound = bound_of("small", "none-local")
    assert bound.rows == 0
    assert bound.active == 0
    assert bound.flops == 0
    assert bound.bytes == 5 * 256 * 4 + 256 * 2 + 5 * 512 * 2


def test_logits_of_the_wrong_width_are_named():
    with pytest.raises(ValueError, match=r"logits: got shape \(3, 64\)"):
        stored = {
            "routing_logits": torch.zeros(3, 64),
            "routing_bias": torch.zeros(256),
        }
        catalogue.SIGMOID_BIAS.counts(workloads.recorded("full")[0], stored, "full")


@pytest.mark.parametrize(
    "layer_key", ["qwen3-next", "bf16_small", "mxfp8", "deepseek-v3-ep8-routed"]
)
def test_the_command_has_each_workloads_bound(layer_key, capsys):
    assert cli.main(["data", layer_key]) == 0
    shown = capsys.readouterr().out
    for uuid in cases_by_uuid(layer_key):
        bound = committed_workloads.bound(layer_key, uuid)
        assert f"{bound.ms:.4f}" in shown


def test_a_definition_without_workloads_names_the_command(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(
        paths, "workload_file", lambda definition, root=None: tmp_path / definition
    )
    assert cli.main(["data", "qwen3-30b"]) == 2
    assert "moebench data qwen3-30b --write" in capsys.readouterr().err

"""The bound that solutions are compared with."""

import committed_workloads
import pytest
import torch
from moebench import cli
from moebench.core import paths
from moebench.operators import moe_fp8_block_scale, workloads
from moebench.operators.workloads import cases_by_uuid


def routed(layer_key, name):
    case = next(case for case in moe_fp8_block_scale.cases(layer_key) if case.name == name)
    return committed_workloads.bound(layer_key, case.uuid)


def test_an_active_expert_is_44_megabytes():
    """The figure of the design, from which memory-bound bounds follow."""
    least = routed("full", "T=7")
    assert least.bytes / least.active == pytest.approx(44e6, rel=0.02)
    assert least.ms == least.memory_ms


def test_many_tokens_are_bound_by_compute():
    least = routed("full", "T=14107")
    assert least.flops == 2 * least.rows * 3 * 2048 * 7168
    assert least.ms == least.compute_ms > least.memory_ms


def test_without_a_local_row_only_routing_and_output_are_moved():
    least = routed("small", "none-local")
    assert (least.rows, least.active, least.flops) == (0, 0, 0)
    assert least.bytes == 5 * 256 * 4 + 256 * 2 + 5 * 512 * 2


def test_logits_of_the_wrong_width_are_named():
    with pytest.raises(ValueError, match=r"logits: got shape \(3, 64\)"):
        stored = {"routing_logits": torch.zeros(3, 64), "routing_bias": torch.zeros(256)}
        moe_fp8_block_scale.counts(workloads.recorded("full")[0], stored, "full")


@pytest.mark.parametrize(
    "layer_key", ["qwen3-next", "bf16_small", "mxfp8", "deepseek-v3-ep8-routed"]
)
def test_the_command_has_each_workloads_bound(layer_key, capsys):
    assert cli.main(["data", layer_key]) == 0
    shown = capsys.readouterr().out
    assert all(
        f"{committed_workloads.bound(layer_key, uuid).ms:.4f}" in shown
        for uuid in cases_by_uuid(layer_key)
    )


def test_a_definition_without_workloads_names_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "workload_file", lambda definition, root=None: tmp_path / definition)
    assert cli.main(["data", "qwen3-30b"]) == 2
    assert "moebench data qwen3-30b --write" in capsys.readouterr().err

"""The bound that solutions are compared with."""

import numpy as np
import pytest
from harness import cli
from harness.core import paths
from harness.operators import moe_fp8_block_scale, workloads
from harness.operators.catalogue import definition_name
from harness.operators.moe_fp8_block_scale import bound, routing_counts
from harness.operators.workloads import cases_by_uuid

SMALL = ["small", "small-one-group", "small-renorm"]


def routed(geometry, name):
    case = next(case for case in moe_fp8_block_scale.cases(geometry) if case.name == name)
    return workloads.generated_bound(geometry, case.uuid)


def test_an_active_expert_is_44_megabytes():
    """The figure of the design, from which memory-bound bounds follow."""
    least = routed("full", "T=7")
    assert least.bytes / least.active == pytest.approx(44e6, rel=0.02)
    assert least.ms == least.memory_ms


def test_many_tokens_are_bound_by_compute():
    logits = np.random.default_rng(0).standard_normal((14107, 256), dtype=np.float32)
    least = bound(14107, routing_counts(logits, np.zeros(256, np.float32), 32, "full"), "full")
    assert least.flops == 2 * least.rows * 3 * 2048 * 7168
    assert least.ms == least.compute_ms > least.memory_ms


def test_without_a_local_row_only_routing_and_output_are_moved():
    least = routed("small", "none-local")
    assert (least.rows, least.active, least.flops) == (0, 0, 0)
    assert least.bytes == 5 * 256 * 4 + 256 * 2 + 5 * 512 * 2


def test_no_tokens_have_a_bound_too():
    assert routed("small", "no-tokens").rows == 0


def test_logits_of_the_wrong_width_are_named():
    with pytest.raises(ValueError, match=r"logits: got shape \(3, 64\)"):
        routing_counts(np.zeros((3, 64), np.float32), np.zeros(256, np.float32), 0, "full")


@pytest.mark.parametrize("geometry", [*SMALL, "qwen3-next", "small-routed", "deepseek-v3-ep8-routed"])
@pytest.mark.parametrize("name", [str, definition_name])
def test_the_command_has_a_row_for_each_workload(geometry, name, capsys):
    assert cli.main(["bound", "--definition", name(geometry)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert definition_name(geometry) in lines[0]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert len(rows) == len(cases_by_uuid(geometry)) + 1 and rows[-1][0] == "mean"
    assert float(rows[-1][-1]) == pytest.approx(sum(float(row[-1]) for row in rows[:-1]) / (len(rows) - 1), abs=1e-4)


def test_a_definition_without_workloads_gets_one_line(tmp_path, monkeypatch, capsys):
    """Who adds a model would meet: [Errno 2] No such file or directory."""
    monkeypatch.setattr(paths, "counts_file", lambda definition: tmp_path / definition)
    monkeypatch.setattr(workloads, "recorded_counts", workloads.recorded_counts.__wrapped__)
    assert cli.main(["bound", "--definition", "qwen3-30b"]) == 2
    assert capsys.readouterr().err == "qwen3-30b: its workloads are not written: run `moebench workloads qwen3-30b`\n"


def test_an_unknown_definition_is_named(capsys):
    assert cli.main(["bound", "--definition", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("unknown definition 'nothing'; there are: full, deepseek-v3-ep16, ")

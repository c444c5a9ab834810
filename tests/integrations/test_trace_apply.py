"""Packed solutions in FlashInfer's own calls, by its Trace Apply."""

import json
import os
import subprocess
import sys

import pytest
from moebench.core import paths
from moebench.core.errors import UserError
from moebench.operators import catalogue
from moebench.packing import trace_apply

TESTS = paths.ROOT / "tests"
PROGRAM = TESTS / "support" / "engines" / "applied_call.py"

pytestmark = pytest.mark.xdist_group("trace apply")  # one worker makes the calls


def answer_of(solution, key, tokens, folder, **environment):
    """What applied_call.py prints where Trace Apply has a solution of a layer."""
    trace_apply.pack_for_trace_apply([solution], folder, [key])
    environment = os.environ | environment
    environment |= {
        "FLASHINFER_TRACE_APPLY": "1",
        "FLASHINFER_TRACE_APPLY_PATH": str(folder),
        "PYTHONPATH": str(TESTS / "support" / "solutions"),
    }
    command = [sys.executable, PROGRAM, key, str(tokens)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """That of triton_fused_v2 in Triton's interpreter."""
    folder = tmp_path_factory.mktemp("applied")
    home = str(tmp_path_factory.mktemp("home"))
    return answer_of(
        "triton_fused_v2", "small", 5, folder, HOME=home, TRITON_INTERPRET="1"
    )


@pytest.mark.slow
def test_the_call_runs_the_packed_solution(answer):
    assert answer["matched"]["relaxed"] >= 0.85
    assert answer["counts"]["hit"] == 1


@pytest.mark.slow
def test_an_activation_that_the_layer_has_not_is_refused(answer):
    assert answer["clamp_error"].startswith("ValueError")
    assert answer["counts"]["error"] == 1


@pytest.mark.gpu
def test_on_a_gpu_the_call_and_a_graph_of_it_run_the_packed_solution(tmp_path):
    answer = answer_of("hopper_fused", "full", 57, tmp_path)
    assert answer["matched"]["relaxed"] >= 0.85
    assert answer["same_in_graph"]
    assert answer["counts"] == {"hit": 1, "error": 1}


def test_every_written_layer_is_named_as_flashinfer_names_its_call(tmp_path):
    from flashinfer.trace.templates.moe import (
        trtllm_fp8_block_scale_moe_ds_routing_trace as trace,
    )

    names = []
    for path in trace_apply.pack_for_trace_apply(["triton_fused_v2"], tmp_path, []):
        names.append(json.loads(path.read_text())["definition"])
    assert catalogue.definition_name("full") in names

    for name in names:
        sizes = catalogue.layer_sizes()[catalogue.by_name()[name]]
        axes = {axis: sizes.get(axis, 0) for axis in trace.axes}
        axes["n_group"] = sizes["num_groups"]
        axes["topk_group"] = sizes["kept_groups"]
        assert trace.definition_name(axes) == name


def test_a_layer_that_has_no_call_is_refused(tmp_path):
    with pytest.raises(UserError, match="--definition"):
        trace_apply.pack_for_trace_apply(
            ["triton_fused_v2"], tmp_path, ["small-routed"]
        )
    assert not list(tmp_path.iterdir())


def test_two_solutions_of_a_layer_are_refused(tmp_path):
    with pytest.raises(UserError, match="small"):
        trace_apply.pack_for_trace_apply(
            ["triton_fused_v2", "torch_moe"], tmp_path, ["small"]
        )

    trace_apply.pack_for_trace_apply(["triton_fused_v2"], tmp_path, ["small"])
    with pytest.raises(UserError, match="triton_fused_v2"):
        trace_apply.pack_for_trace_apply(["torch_moe"], tmp_path, ["small"])


def test_the_patch_on_the_page_passes_block_scales(monkeypatch):
    from flashinfer.trace.template import Tensor
    from flashinfer.trace.templates.moe import cutlass_fused_moe_trace as trace
    from flashinfer.trace_apply.adapt import build_candidate_kwargs

    call_arguments = {"input": "x", "quant_scales": ["scales of w13", "scales of w2"]}
    assert build_candidate_kwargs(trace, call_arguments) == {"input": "x"}

    for position, name in enumerate(["fc1_expert_scales", "fc2_expert_scales"]):
        scales = Tensor([], param="quant_scales", tuple_idx=position, optional=True)
        monkeypatch.setitem(trace.inputs, name, scales)
    assert build_candidate_kwargs(trace, call_arguments) == {
        "input": "x",
        "fc1_expert_scales": "scales of w13",
        "fc2_expert_scales": "scales of w2",
    }

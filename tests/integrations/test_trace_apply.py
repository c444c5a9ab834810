"""Packed solutions in FlashInfer's own calls, by its Trace Apply."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from moebench.core.errors import UserError
from moebench.operators import catalogue
from moebench.packing import trace_apply

SUPPORT = Path(__file__).parents[1] / "support" / "solutions"

# FlashInfer asks CUDA whether a graph is being captured, which torch without CUDA cannot answer.
CALL = f"""
import json, sys, torch
torch.cuda.is_current_stream_capturing = lambda: False
sys.path.insert(0, {str(SUPPORT)!r})
import layer_inputs
from flashinfer.fused_moe import trtllm_fp8_block_scale_moe
from flashinfer.trace_apply import stats_snapshot
from moebench.judging.tolerances import matched_ratios

options = json.loads(sys.argv[1])
inputs = layer_inputs.arguments("small", 5, "cpu")
inputs.pop("output")
expected = layer_inputs.reference("small").run(**inputs)
offset = inputs.pop("local_expert_offset")
factor = inputs.pop("routed_scaling_factor")
top_k = options.pop("top_k", 8)
clamp = torch.ones(32) if options.pop("clamp", False) else None
try:
    output = trtllm_fp8_block_scale_moe(
        **inputs, num_experts=256, top_k=top_k, n_group=8, topk_group=4, intermediate_size=256,
        local_expert_offset=offset, local_num_experts=32, routed_scaling_factor=factor,
        routing_method_type=2, gemm1_clamp_limit=clamp,
    )
    result = {{"relaxed": matched_ratios(output, expected)["relaxed"]}}
except Exception as error:
    result = {{"error": type(error).__name__}}
counts = list(stats_snapshot().values())
print(json.dumps(result | {{"counts": counts[0] if counts else {{}}}}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("applied")
    trace_apply.pack_for_trace_apply(["triton_fused_v2"], folder, ["small"])
    return folder


def call(folder, home, **options):
    """Return what a process that calls FlashInfer prints."""
    environment = os.environ | {
        "FLASHINFER_TRACE_APPLY": "1",
        "FLASHINFER_TRACE_APPLY_PATH": str(folder),
        "HOME": str(home),
        "TRITON_INTERPRET": "1",
    }
    command = [sys.executable, "-c", CALL, json.dumps(options)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_call_runs_the_packed_solution(folder, tmp_path):
    result = call(folder, tmp_path)
    assert result["counts"] == {"hit": 1}
    assert result["relaxed"] >= 0.85


@pytest.mark.slow
def test_an_activation_that_the_layer_has_not_is_refused(folder, tmp_path):
    assert call(folder, tmp_path, clamp=True) == {"error": "ValueError", "counts": {"error": 1}}


def test_every_written_layer_is_named_as_flashinfer_names_its_call(tmp_path):
    from flashinfer.trace.templates.moe import trtllm_fp8_block_scale_moe_ds_routing_trace as trace

    written = trace_apply.pack_for_trace_apply(["triton_fused_v2"], tmp_path, [])
    by_name = catalogue.by_name()
    keys = []
    for path in written:
        definition = json.loads(path.read_text())["definition"]
        keys.append(by_name[definition])
    assert "full" in keys

    for key in keys:
        sizes = catalogue.layer_sizes()[key]
        axes = {name: sizes.get(name, 0) for name in trace.axes}
        axes["n_group"] = sizes["num_groups"]
        axes["topk_group"] = sizes["kept_groups"]
        assert trace.definition_name(axes) == catalogue.definition_name(key)


def test_a_layer_that_has_no_call_is_refused(tmp_path):
    with pytest.raises(UserError, match="--definition"):
        trace_apply.pack_for_trace_apply(["triton_fused_v2"], tmp_path, ["small-routed"])
    assert not list(tmp_path.iterdir())


def test_two_solutions_of_a_layer_are_refused(tmp_path):
    names = ["triton_fused_v2", "torch_moe"]
    with pytest.raises(UserError, match="small"):
        trace_apply.pack_for_trace_apply(names, tmp_path, ["small"])

    trace_apply.pack_for_trace_apply(names[:1], tmp_path, ["small"])
    with pytest.raises(UserError, match="triton_fused_v2"):
        trace_apply.pack_for_trace_apply(names[1:], tmp_path, ["small"])


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

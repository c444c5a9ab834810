"""flashinfer_mxfp4 and its W4A8: their call and their weights fit FlashInfer's, where they cannot
run.
"""

import inspect
import os
import re
from types import SimpleNamespace

import pytest
import torch
from every_solution import expected_output
from layer_inputs import DEVICE, arguments
from moebench.operators.fp8.mxfp4 import dequantize_mxfp4

from solutions.common.triton.rows import dequantise
from solutions.flashinfer_mxfp4 import build, kernels, keywords, layout, prepare, source
from solutions.flashinfer_mxfp4_w4a8 import prepare as prepare_w4a8
from solutions.flashinfer_mxfp4_w4a8 import source as source_w4a8

LAYER_KEY = "small-mxfp4"
FIRST_EXPERT = 16
LIMIT = 10.0
WEIGHTS = ("gemm1_weights", "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale")
BOTH = pytest.mark.parametrize("flags", [prepare.FLAGS, prepare_w4a8.FLAGS])


def installed():
    from flashinfer.fused_moe import cutlass_fused_moe

    return inspect.signature(cutlass_fused_moe)


@pytest.fixture(autouse=True)
def as_packed(monkeypatch):
    """The layer's activation and its tokens' scales, as packing writes them into problem.py and
    interface.py.
    """
    monkeypatch.setattr(keywords, "SWIGLU_LIMIT", LIMIT)
    monkeypatch.setattr(dequantise, "SCALES_ROW_MAJOR", True)


def layer_inputs(num_tokens=11):
    return SimpleNamespace(**arguments(LAYER_KEY, num_tokens, "cpu", offset=FIRST_EXPERT))


def weights_of(layer):
    return [getattr(layer, name) for name in WEIGHTS]


def plain(layer):
    """Return weights as they are before anything is interleaved, `up` first."""
    gemm1, gemm1_scale, gemm2, gemm2_scale = layout.as_bytes(weights_of(layer))
    return layout.Prepared(gemm1, gemm2, [gemm1_scale, gemm2_scale])


def call_of(layer, prepared, flags=prepare.FLAGS):
    """Return what the library is handed."""
    experts, weights = keywords.local_routing(
        layer.topk_ids, layer.topk_weights, layer.local_expert_offset, len(prepared.gemm1)
    )
    x = dequantise.dequantise_ref(layer.hidden_states, layer.hidden_states_scale)
    return keywords.keywords(experts, weights, x, prepared, flags, layer.output)


def statement(call):
    """Return the output that FlashInfer's page describes, of weights that are not interleaved."""
    x = call["input"].float()
    output = torch.zeros_like(x)
    for expert in range(len(call["fc1_expert_weights"])):
        chosen = call["token_selected_experts"] == expert
        factor = torch.where(chosen, call["token_final_scales"], 0).sum(dim=1)
        output += factor.unsqueeze(1) * expert_statement(call, expert, x)
    return output


def expert_statement(call, expert, x):
    """Return what an expert makes of all tokens."""
    gemm1_scale, gemm2_scale = call["quant_scales"]
    w13 = dequantize_mxfp4(call["fc1_expert_weights"][expert], gemm1_scale[expert])
    w2 = dequantize_mxfp4(call["fc2_expert_weights"][expert], gemm2_scale[expert])
    limit = call["swiglu_limit"][expert]

    linear, gate = (x @ w13.t()).chunk(2, dim=1)
    linear = linear.clamp(-limit, limit) + call["swiglu_beta"][expert]
    gate = gate.clamp(max=limit)
    h = gate * torch.sigmoid(call["swiglu_alpha"][expert] * gate) * linear
    return h @ w2.t()


def test_the_call_says_our_layer():
    """Gate taken for up, another rank's experts, weights of empty slots, no clamp."""
    layer = layer_inputs()
    layer.topk_weights[layer.topk_ids < FIRST_EXPERT] = torch.nan
    inputs = {name: value for name, value in vars(layer).items() if name != "output"}
    expected = expected_output(LAYER_KEY, inputs).float()
    assert expected.abs().max() > 1

    output = statement(call_of(layer, plain(layer)))
    is_close = torch.isclose(output, expected, rtol=0.05, atol=0.05)
    assert is_close.float().mean() > 0.99


@BOTH
def test_the_call_fits_what_is_installed(flags):
    layer = layer_inputs()
    keywords.check_signature(installed().parameters, flags)
    bound = installed().bind(**call_of(layer, plain(layer), flags))
    assert flags.items() <= bound.arguments.items()


@BOTH
def test_a_flashinfer_without_these_kernels_is_named(flags):
    parameters = dict(installed().parameters)
    flag = list(flags)[-1]
    del parameters[flag]
    with pytest.raises(ImportError, match=flag):
        keywords.check_signature(parameters, flags)

    new = inspect.Parameter("moon_phase", inspect.Parameter.KEYWORD_ONLY)
    with pytest.raises(ImportError, match="moon_phase"):
        keywords.check_signature(installed().parameters | {"moon_phase": new}, flags)


def test_the_call_has_the_checked_types():
    """A refusal in FlashInfer's C++, on the GPU only."""
    call = call_of(layer_inputs(), plain(layer_inputs()))
    assert call["input"].dtype == torch.bfloat16
    assert call["token_selected_experts"].dtype == torch.int32
    assert call["token_final_scales"].dtype == torch.float32
    assert call["fc1_expert_weights"].dtype == torch.uint8
    for name in ("swiglu_alpha", "swiglu_beta", "swiglu_limit"):
        assert call[name].dtype == torch.float32
        assert call[name].shape == (len(call["fc1_expert_weights"]),)


def test_without_a_clamp_the_library_has_its_own_silu(monkeypatch):
    monkeypatch.setattr(keywords, "SWIGLU_LIMIT", 0.0)
    layer = layer_inputs()
    assert "swiglu_limit" not in call_of(layer, plain(layer))


def test_slots_without_a_local_expert_are_the_other_ranks():
    ids = torch.tensor([[16, 31, 32, 15, -1, -(2**31), 2**31 - 1]], dtype=torch.int32)
    weights = torch.tensor([[1.0, 2.0, *[torch.nan] * 5]])
    experts, factors = keywords.local_routing(ids, weights, 16, 16)
    assert experts.tolist() == [[0, 15, 16, 16, 16, 16, 16]]
    assert factors.tolist() == [[1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]]


def interleaved(weight, quant_type):
    """In place of FlashInfer's kernel, which needs a GPU: the bytes stay where they are."""
    assert quant_type == "fp4"
    return weight


def test_weights_are_prepared_by_flashinfers_functions(monkeypatch):
    """Scales folded here as there."""
    name = "interleave_moe_weights_for_sm90_mixed_gemm"
    monkeypatch.setattr(prepare.fused_moe, name, interleaved)
    layer = layer_inputs()
    expected = plain(layer)
    experts = len(expected.gemm1)

    prepared = prepare.prepare(weights_of(layer))

    assert torch.equal(prepared.gemm1, expected.gemm1)
    assert torch.equal(prepared.gemm2, expected.gemm2)
    first, second = prepared.quant_scales
    assert first.dtype == second.dtype == torch.int32
    assert first.shape == (experts, 768 // 64, 640 // 128, 16, 4)
    assert second.shape == (experts, 640 // 64, 384 // 128, 16, 4)
    last_of_first_block = first.view(torch.uint8)[0, 0, 0, 15]
    rows = expected.quant_scales[0][0, [15, 31, 47, 63], :4]
    assert torch.equal(last_of_first_block, rows.flatten())


def smallest_scales(scale):
    """Return the smallest scale of each expert."""
    return scale.float().flatten(1).amin(1)


def preprocessed(weight, scale):
    """In place of FlashInfer's kernel: the weight, its scales in blocks, a factor for each
    expert.
    """
    blocks = scale.reshape(1, -1, scale.shape[2] // 4, 16, 16)
    return weight, blocks, smallest_scales(scale)


def test_w4a8_weights_are_prepared_expert_by_expert(monkeypatch):
    name = "preprocess_moe_weights_for_sm90_mixed_gemm_humming"
    monkeypatch.setattr(prepare_w4a8.fused_moe, name, preprocessed)
    layer = layer_inputs()
    expected = plain(layer)

    prepared = prepare_w4a8.prepare(weights_of(layer))

    first, first_factor, _, _, second_factor = prepared.quant_scales
    first_scale, second_scale = expected.quant_scales
    assert torch.equal(prepared.gemm1, expected.gemm1)
    assert first.dtype == torch.int32
    assert first.shape[-2:] == (16, 4)
    assert torch.equal(first_factor, 64 * smallest_scales(first_scale))
    assert torch.equal(second_factor, 64 * smallest_scales(second_scale))


def test_packed_dequantise_takes_scales_row_by_row(packed_module):
    """A packed solution that reads them as the other definitions have them."""
    packed = packed_module("flashinfer_mxfp4", dequantise.__name__.partition(".")[2], LAYER_KEY)
    values = arguments(LAYER_KEY, 37, DEVICE)
    x = values["hidden_states"]
    x_scale = values["hidden_states_scale"]

    output = packed.dequantise(x, x_scale)

    # Triton's interpreter cuts bf16 off instead of rounding it.
    step = 0 if DEVICE == "cuda" else 2**-7
    expected = dequantise.dequantise_ref(x, x_scale)
    torch.testing.assert_close(output, expected, rtol=step, atol=0)


def instantiations(text):
    """Return the template arguments of the launchers that a source instantiates."""
    without_spaces = re.sub(r"\s", "", text)
    return set(re.findall(r"Launcher<(.+?)>\(Grouped", without_spaces))


@pytest.mark.parametrize("wanted", [source, source_w4a8], ids=["W4A16", "W4A8"])
def test_what_is_compiled_is_of_the_installed_release(wanted, monkeypatch, tmp_path):
    """None of it is compiled here."""
    from flashinfer.jit import core, env

    monkeypatch.setattr(core.current_compilation_context, "TARGET_CUDA_ARCHS", {(9, "0a")})
    monkeypatch.setattr(env, "FLASHINFER_GEN_SRC_DIR", tmp_path / "generated")
    monkeypatch.setattr(env, "FLASHINFER_JIT_DIR", tmp_path / "jit")
    for name in ("ACTIVATIONS", "KERNELS", "RUNNER", "SCALES"):
        monkeypatch.setattr(build, name, getattr(wanted, name))

    full = build.core.gen_cutlass_fused_moe_sm90_module()
    generated = set()
    for file in full.sources:
        if "_Mixed_" in file.name:
            generated |= instantiations(file.read_text())

    files = {file.name: file for file in build.choose_spec().sources}
    compiled = [instantiations(files[f"{each.name}.cu"].read_text()) for each in wanted.KERNELS]
    assert all(len(each) == 1 and each <= generated for each in compiled)
    assert {wanted.RUNNER, "candidates.cpp"} <= files.keys()
    assert not any(name.endswith((".generated.cu", "cutlass_heuristic.cpp")) for name in files)
    assert len(files) < len(full.sources) / 5


def test_a_source_that_is_as_it_should_be_is_not_written_again(tmp_path):
    arguments = (tmp_path, source.KERNELS, source.ACTIVATIONS, source.SCALES)
    paths = kernels.write_sources(*arguments)
    changed = paths[1]
    changed.write_text("old")
    for path in paths:
        os.utime(path, (0, 0))

    assert kernels.write_sources(*arguments) == paths
    assert [path for path in paths if path.stat().st_mtime] == [changed]

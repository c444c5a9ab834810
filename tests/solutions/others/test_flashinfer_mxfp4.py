"""flashinfer_mxfp4 and flashinfer_mxfp4_w4a8: what they hand to FlashInfer's cutlass_fused_moe is
our layer, and fits the installed release. Their kernels do not run here.
"""

import inspect
import os
import re
from types import SimpleNamespace

import pytest
import torch
from every_solution import expected_output, share_of_close
from layer_inputs import DEVICE, WEIGHTS_AND_SCALES, arguments
from moebench.operators.fp8.mxfp4 import dequantize_mxfp4

from solutions.common.triton.rows import dequantise
from solutions.flashinfer_mxfp4 import build, kernels, keywords, layout, prepare, source
from solutions.flashinfer_mxfp4_w4a8 import prepare as prepare_w4a8
from solutions.flashinfer_mxfp4_w4a8 import source as source_w4a8

LAYER_KEY = "small-mxfp4"
FIRST_EXPERT = 16
LIMIT = 10.0
BOTH = pytest.mark.parametrize("flags", [prepare.FLAGS, prepare_w4a8.FLAGS])


def installed_signature():
    """Return the signature of the installed cutlass_fused_moe."""
    from flashinfer.fused_moe import cutlass_fused_moe

    return inspect.signature(cutlass_fused_moe)


@pytest.fixture(autouse=True)
def as_packed(monkeypatch):
    """Set the constants that packing writes into a solution: the clamp, and the scales' order."""
    monkeypatch.setattr(keywords, "SWIGLU_LIMIT", LIMIT)
    monkeypatch.setattr(dequantise, "SCALES_ROW_MAJOR", True)


def layer_inputs(num_tokens=11):
    """Return the arguments of the layer, as attributes."""
    return SimpleNamespace(
        **arguments(LAYER_KEY, num_tokens, "cpu", offset=FIRST_EXPERT)
    )


def weights_of(layer):
    """Return the layer's packed weights and scales, in the order that `prepare` takes."""
    return [getattr(layer, name) for name in WEIGHTS_AND_SCALES]


def plain_weights(layer):
    """Return Prepared weights before FlashInfer's functions interleave them: `up` comes first."""
    gemm1, gemm1_scale, gemm2, gemm2_scale = layout.as_bytes(weights_of(layer))
    return layout.Prepared(gemm1, gemm2, [gemm1_scale, gemm2_scale])


def call_of(layer, prepared, flags=prepare.FLAGS):
    """Return name -> argument of our call of cutlass_fused_moe."""
    num_local = len(prepared.gemm1)
    routing = (layer.topk_ids, layer.topk_weights, layer.local_expert_offset)
    experts, weights = keywords.local_routing(*routing, num_local)
    x = dequantise.dequantise_ref(layer.hidden_states, layer.hidden_states_scale)
    return keywords.keywords(experts, weights, x, prepared, flags, layer.output)


def described_output(call):
    """Return the output of a call with plain weights, as FlashInfer's page describes it."""
    x = call["input"].float()
    output = torch.zeros_like(x)
    num_experts = len(call["fc1_expert_weights"])
    for expert in range(num_experts):
        is_chosen = call["token_selected_experts"] == expert
        factors = call["token_final_scales"].where(is_chosen, 0)
        factor = factors.sum(dim=1, keepdim=True)
        output += factor * described_expert(call, expert, x)
    return output


def described_expert(call, expert, x):
    """Return what an expert makes of all tokens x [T, H], by that description."""
    gemm1_scale, gemm2_scale = call["quant_scales"]
    w13 = dequantize_mxfp4(call["fc1_expert_weights"][expert], gemm1_scale[expert])
    w2 = dequantize_mxfp4(call["fc2_expert_weights"][expert], gemm2_scale[expert])
    limit = call["swiglu_limit"][expert]
    alpha = call["swiglu_alpha"][expert]
    beta = call["swiglu_beta"][expert]

    linear, gate = (x @ w13.t()).chunk(2, dim=1)
    linear = linear.clamp(-limit, limit) + beta
    gate = gate.clamp(max=limit)
    h = gate * torch.sigmoid(alpha * gate) * linear
    return h @ w2.t()


def test_the_call_describes_our_layer():
    """Catches gate taken for up, another rank's experts, weights of slots that are not local, and
    no clamp.
    """
    layer = layer_inputs()
    layer.topk_weights[layer.topk_ids < FIRST_EXPERT] = torch.nan
    inputs = dict(vars(layer))
    del inputs["output"]
    expected = expected_output(LAYER_KEY, inputs).float()
    assert expected.abs().max() > 1

    call = call_of(layer, plain_weights(layer))
    output = described_output(call)
    assert share_of_close(output, expected, tolerance=0.05) > 0.99


@BOTH
def test_the_call_fits_the_installed_signature(flags):
    layer = layer_inputs()
    signature = installed_signature()
    keywords.check_signature(signature.parameters, flags)
    bound = signature.bind(**call_of(layer, plain_weights(layer), flags))
    assert flags.items() <= bound.arguments.items()


@BOTH
def test_a_signature_that_our_call_does_not_fit_is_refused(flags):
    """One without our flag, as of a release without these kernels, and one that wants more."""
    installed = installed_signature().parameters
    *_, flag = flags
    without_flag = dict(installed)
    del without_flag[flag]
    with pytest.raises(ImportError, match=flag):
        keywords.check_signature(without_flag, flags)

    required = inspect.Parameter("moon_phase", inspect.Parameter.KEYWORD_ONLY)
    more = {**installed, "moon_phase": required}
    with pytest.raises(ImportError, match="moon_phase"):
        keywords.check_signature(more, flags)


def test_the_call_has_the_types_that_flashinfer_wants():
    """Its C++ checks them, but only where there is a GPU."""
    layer = layer_inputs()
    call = call_of(layer, plain_weights(layer))
    dtypes = {
        "input": torch.bfloat16,
        "token_selected_experts": torch.int32,
        "token_final_scales": torch.float32,
        "fc1_expert_weights": torch.uint8,
        "swiglu_alpha": torch.float32,
        "swiglu_beta": torch.float32,
        "swiglu_limit": torch.float32,
    }
    assert {name: call[name].dtype for name in dtypes} == dtypes

    num_experts = len(call["fc1_expert_weights"])
    for name in ("swiglu_alpha", "swiglu_beta", "swiglu_limit"):
        assert call[name].shape == (num_experts,)


def test_a_layer_without_a_clamp_names_no_activation(monkeypatch):
    """FlashInfer's own is silu(gate) * up."""
    monkeypatch.setattr(keywords, "SWIGLU_LIMIT", 0.0)
    layer = layer_inputs()
    assert "swiglu_limit" not in call_of(layer, plain_weights(layer))


def test_slots_without_a_local_expert_get_another_ranks_expert_and_no_weight():
    """The rank has experts 16 to 31; 16, its number of experts, is the first of the next rank."""
    int32 = torch.iinfo(torch.int32)
    not_local = [32, 15, -1, int32.min, int32.max]
    count = len(not_local)
    ids = torch.tensor([[16, 31, *not_local]], dtype=torch.int32)
    weights = torch.tensor([[1.0, 2.0, *[torch.nan] * count]])

    experts, factors = keywords.local_routing(ids, weights, 16, 16)

    assert experts.tolist() == [[0, 15, *[16] * count]]
    assert factors.tolist() == [[1.0, 2.0, *[0.0] * count]]


def fake_interleave(weight, quant_type):
    """Stand in for FlashInfer's kernel, which needs a GPU: the bytes stay where they are."""
    assert quant_type == "fp4"
    return weight


def test_weights_are_prepared_by_flashinfers_functions(monkeypatch):
    """FlashInfer folds the scales without a GPU, so that is compared; its kernel is a fake."""
    name = "interleave_moe_weights_for_sm90_mixed_gemm"
    monkeypatch.setattr(prepare.fused_moe, name, fake_interleave)
    layer = layer_inputs()
    expected = plain_weights(layer)
    experts = len(expected.gemm1)

    prepared = prepare.prepare(weights_of(layer))

    assert torch.equal(prepared.gemm1, expected.gemm1)
    assert torch.equal(prepared.gemm2, expected.gemm2)
    first, second = prepared.quant_scales
    assert first.dtype == second.dtype == torch.int32
    # gemm1 is [768, 640], gemm2 [640, 384]; blocks of 64 rows by 4 groups of 32 columns
    assert first.shape == (experts, 768 // 64, 640 // 128, 16, 4)
    assert second.shape == (experts, 640 // 64, 384 // 128, 16, 4)

    first_block = first.view(torch.uint8)[0, 0, 0]
    first_expert, *_ = expected.quant_scales[0]
    rows = first_expert[[15, 31, 47, 63], :4]
    assert torch.equal(first_block[15], rows.flatten())


def smallest_scales(scale):
    """Return the smallest scale of each expert."""
    return scale.float().flatten(1).amin(1)


def fake_preprocess(weight, scale):
    """Stand in for FlashInfer's kernel, which takes one expert: return the weight as it is, its
    scales in blocks, and its smallest scale as the expert's factor.
    """
    assert len(weight) == 1
    blocks = scale.reshape(1, -1, scale.shape[2] // 4, 16, 16)
    return weight, blocks, smallest_scales(scale)


def test_w4a8_weights_are_prepared_expert_by_expert(monkeypatch):
    """A factor is 64 times FlashInfer's, as its page says."""
    name = "preprocess_moe_weights_for_sm90_mixed_gemm_humming"
    monkeypatch.setattr(prepare_w4a8.fused_moe, name, fake_preprocess)
    layer = layer_inputs()
    expected = plain_weights(layer)

    prepared = prepare_w4a8.prepare(weights_of(layer))

    first, first_factor, _, _, second_factor = prepared.quant_scales
    first_scale, second_scale = expected.quant_scales
    assert torch.equal(prepared.gemm1, expected.gemm1)
    assert first.dtype == torch.int32
    assert first.shape[-2:] == (16, 4)
    assert torch.equal(first_factor, 64 * smallest_scales(first_scale))
    assert torch.equal(second_factor, 64 * smallest_scales(second_scale))


def test_packed_dequantise_takes_scales_row_by_row(packed_module):
    """Catches a packed solution that reads them column by column, as some definitions have them."""
    module_name = dequantise.__name__.removeprefix("solutions.")
    packed = packed_module("flashinfer_mxfp4", module_name, LAYER_KEY)
    values = arguments(LAYER_KEY, 37, DEVICE)
    x = values["hidden_states"]
    x_scale = values["hidden_states_scale"]

    output = packed.dequantise(x, x_scale)

    # Triton's interpreter cuts bf16 off instead of rounding it.
    tolerance = 0 if DEVICE == "cuda" else 2**-7
    expected = dequantise.dequantise_ref(x, x_scale)
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=0)


def instantiations(text):
    """Return the template arguments of the launchers that a source instantiates."""
    without_spaces = re.sub(r"\s", "", text)
    return set(re.findall(r"Launcher<(.+?)>\(Grouped", without_spaces))


def mixed_instantiations(sources):
    """Return the instantiations in FlashInfer's generated sources of mixed types."""
    generated = set()
    for file in sources:
        if "_Mixed_" in file.name:
            generated |= instantiations(file.read_text())
    return generated


@pytest.mark.parametrize("variant", [source, source_w4a8], ids=["W4A16", "W4A8"])
def test_our_build_instantiates_some_of_the_installed_releases_kernels(
    variant, monkeypatch, tmp_path
):
    """Each launcher that we would compile is one that FlashInfer's own build generates, and few of
    its sources are left. Nothing is compiled here.
    """
    from flashinfer.jit import core, env

    monkeypatch.setattr(
        core.current_compilation_context, "TARGET_CUDA_ARCHS", {(9, "0a")}
    )
    monkeypatch.setattr(env, "FLASHINFER_GEN_SRC_DIR", tmp_path / "generated")
    monkeypatch.setattr(env, "FLASHINFER_JIT_DIR", tmp_path / "jit")
    for name in ("ACTIVATIONS", "KERNELS", "RUNNER", "SCALES"):
        monkeypatch.setattr(build, name, getattr(variant, name))

    full = build.core.gen_cutlass_fused_moe_sm90_module()
    generated = mixed_instantiations(full.sources)

    files = {file.name: file for file in build.choose_spec().sources}
    for kernel in variant.KERNELS:
        text = files[f"{kernel.name}.cu"].read_text()
        launchers = instantiations(text)
        assert len(launchers) == 1
        assert launchers <= generated
    assert {variant.RUNNER, "candidates.cpp"} <= files.keys()
    for name in files:
        assert not name.endswith((".generated.cu", "cutlass_heuristic.cpp"))
    assert len(files) < len(full.sources) / 5


def test_flashinfer_calls_a_solutions_own_module():
    """FlashInfer keeps one for a process, in which FlashInfer-Bench runs several solutions."""
    kept = build.core.get_cutlass_fused_moe_module
    with build.calling("ours"):
        assert build.core.get_cutlass_fused_moe_module("90") == "ours"
    assert build.core.get_cutlass_fused_moe_module is kept


def test_only_sources_that_differ_are_written_again(tmp_path):
    """A newer file would be compiled again."""
    arguments = (tmp_path, source.KERNELS, source.ACTIVATIONS, source.SCALES)
    paths = kernels.write_sources(*arguments)
    changed = paths[1]
    changed.write_text("old")
    for path in paths:
        os.utime(path, (0, 0))

    assert kernels.write_sources(*arguments) == paths
    written = [path for path in paths if path.stat().st_mtime != 0]
    assert written == [changed]

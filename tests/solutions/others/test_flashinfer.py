"""flashinfer_cutlass and flashinfer_trtllm: their calls fit FlashInfer's functions, where they
cannot run.
"""

import importlib
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from every_solution import OUTPUT, expected_output, share_of_close, slow
from layer_inputs import arguments as layer_arguments
from layer_inputs import halves_swapped, reference
from moebench.operators import catalogue
from signatures import recorded, signature_of

from solutions.common.triton.rows.dequantise import dequantise_ref
from solutions.flashinfer_cutlass import build
from solutions.flashinfer_cutlass import keywords as cutlass
from solutions.flashinfer_trtllm import keywords as trtllm

RELEASES = recorded("flashinfer_signatures.json")
CUTLASS = "cutlass_fused_moe"
TRTLLM = "trtllm_fp8_block_scale_moe"
MODULES = {TRTLLM: trtllm, CUTLASS: cutlass}
FIRST_EXPERT = 29  # no multiple of the number of local experts
SMALL = [*catalogue.SIGMOID_BIAS.small(), *catalogue.RENORM.small()]

both_functions = pytest.mark.parametrize("function", MODULES)
small_layers = pytest.mark.parametrize("layer_key", SMALL)


def installed(function):
    module = importlib.import_module("flashinfer.fused_moe")
    return inspect.signature(getattr(module, function))


def inputs(layer_key="small", num_tokens=19, device="cpu"):
    """Return the layer's arguments, as check_arguments returns them."""
    absent = {
        "routing_bias": None,
        "local_expert_offset": 0,
        "routed_scaling_factor": 1.0,
    }
    arguments = layer_arguments(layer_key, num_tokens, device, offset=FIRST_EXPERT)
    return SimpleNamespace(**absent | arguments)


def problem(layer_key):
    """Return a layer's sizes as problem.py has them."""
    layer_sizes = catalogue.layer_sizes()[layer_key]
    sizes = {key.upper(): value for key, value in layer_sizes.items()}
    return SimpleNamespace(**sizes, RENORM=layer_key in catalogue.renorm())


def keywords_of_call(function, parameters, layer_key, layer):
    """Return what our solution hands to the function."""
    if function == TRTLLM:
        return trtllm.keywords(parameters, problem(layer_key), layer)

    experts, weights = local_routing(layer_key, layer)
    x = dequantise_ref(layer.hidden_states, layer.hidden_states_scale)
    num_experts = layer.routing_logits.shape[1]
    gemm1 = (layer.gemm1_weights, layer.gemm1_weights_scale)
    gemm2 = (layer.gemm2_weights, layer.gemm2_weights_scale)
    return cutlass.keywords(
        parameters, experts, weights, x, num_experts, gemm1, gemm2, layer.output
    )


def local_routing(layer_key, layer):
    """Return experts of this rank, -1 where they are another's, and weights, [T, top_k]."""
    routing = [layer.routing_logits]
    if layer.routing_bias is not None:
        routing += [layer.routing_bias, layer.routed_scaling_factor]
    experts, weights = reference(layer_key).route(*routing)
    local = experts - layer.local_expert_offset
    is_local = (local >= 0) & (local < len(layer.gemm1_weights))
    return torch.where(is_local, local, -1).int(), weights


# ---- signatures ----


def assert_call_fits(signature, function, layer_key):
    MODULES[function].check_signature(signature.parameters)
    keywords = keywords_of_call(
        function, signature.parameters, layer_key, inputs(layer_key)
    )
    bound = signature.bind(**keywords)
    if OUTPUT in signature.parameters:
        assert OUTPUT in bound.arguments


@pytest.mark.parametrize("layer_key", ["small", "small-renorm"])
@both_functions
@pytest.mark.parametrize("release", RELEASES)
def test_our_call_fits_a_recorded_release(release, function, layer_key):
    """Catches a TypeError on the GPU, after a rename or a removal."""
    assert_call_fits(signature_of(RELEASES[release][function]), function, layer_key)


@small_layers
@both_functions
def test_our_call_fits_what_is_installed(function, layer_key):
    assert_call_fits(installed(function), function, layer_key)


@both_functions
def test_an_argument_that_we_do_not_know_is_named(function):
    new = inspect.Parameter("moon_phase", inspect.Parameter.KEYWORD_ONLY)
    parameters = installed(function).parameters | {"moon_phase": new}
    with pytest.raises(ImportError, match="moon_phase"):
        MODULES[function].check_signature(parameters)


@both_functions
def test_an_argument_that_is_no_longer_taken_is_named(function):
    parameters = dict(installed(function).parameters)
    name = next(iter(parameters))
    del parameters[name]
    with pytest.raises(ImportError, match=name):
        MODULES[function].check_signature(parameters)


# ---- what is handed over ----


def test_trtllm_gets_what_its_statement_does_not_read():
    """Catches a refusal in FlashInfer's C++, or weights read in another layout."""
    layer = inputs("full", 5, "meta")
    keywords = keywords_of_call(TRTLLM, installed(TRTLLM).parameters, "full", layer)
    assert keywords["num_experts"] == 256
    assert keywords["local_num_experts"] == 32
    assert keywords["intermediate_size"] == 2048
    assert keywords["use_shuffled_weight"] is False
    assert keywords["weight_layout"] == trtllm.K_MAJOR


def test_our_constants_are_flashinfers():
    """Catches another routing under the same number."""
    from flashinfer.fused_moe import RoutingMethodType, WeightLayout

    assert RoutingMethodType.DeepSeekV3 == trtllm.DEEPSEEK_V3
    assert RoutingMethodType.Renormalize == trtllm.RENORMALIZE
    assert WeightLayout.MajorK == trtllm.K_MAJOR


@small_layers
def test_cutlass_gets_the_checked_dtypes(layer_key):
    """Catches a refusal in FlashInfer's C++, on the GPU only."""
    parameters = installed(CUTLASS).parameters
    keywords = keywords_of_call(CUTLASS, parameters, layer_key, inputs(layer_key))
    assert keywords["token_selected_experts"].dtype == torch.int32
    assert keywords["input"].dtype == torch.bfloat16
    assert keywords["output"].dtype == torch.bfloat16
    assert keywords["output_dtype"] == torch.bfloat16
    assert keywords["token_final_scales"].dtype == torch.float32
    assert [scale.dtype for scale in keywords["quant_scales"]] == [torch.float32] * 2


# ---- FlashInfer's own plain torch statement of a function ----


def statement_of(function, routing):
    """Return it, for keywords of which it takes what it knows; releases before 0.6.11 have none."""
    templates = pytest.importorskip("flashinfer.trace.templates.moe")
    if function == CUTLASS:
        statement = templates.cutlass_fused_moe_trace.reference
    else:
        dispatch = templates.trtllm_fp8_block_scale_moe_trace_dispatch
        statement = dispatch(routing_method_type=routing).reference
    parameters = inspect.signature(statement).parameters.values()
    takes_all = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}

    def call(keywords):
        if takes_all:
            return statement(**keywords)
        return statement(**{name: keywords[name] for name in keywords.keys() & names})

    return call


def with_scaled_weights(keywords, layer):
    """Return keywords for cutlass's statement, which leaves the weights' scales out."""
    keywords = dict(keywords)
    names = ("fc1_expert_weights", "fc2_expert_weights")
    for name, scale in zip(names, keywords["quant_scales"], strict=True):
        wide_scale = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
        keywords[name] = keywords[name].float() * wide_scale
    keywords["input"] = dequantise_ref(
        layer.hidden_states, layer.hidden_states_scale
    ).float()
    return keywords


@pytest.mark.parametrize("layer_key", ["small", *map(slow, SMALL[1:])])
@both_functions
def test_flashinfers_statement_of_our_call_is_our_definition(function, layer_key):
    """Catches gate taken for up, scales of other columns, another rank's experts."""
    layer = inputs(layer_key)
    definition_inputs = catalogue.definition(layer_key).inputs
    arguments = {name: vars(layer)[name] for name in definition_inputs}
    expected = expected_output(layer_key, arguments)
    parameters = installed(function).parameters
    keywords = keywords_of_call(function, parameters, layer_key, layer)
    statement = statement_of(function, keywords.get("routing_method_type"))
    gemm1 = ["gemm1_weights", "gemm1_weights_scale"]
    if function == CUTLASS:
        keywords = with_scaled_weights(keywords, layer)
        gemm1 = ["fc1_expert_weights"]

    # activations that pass through bf16 differ by less than a tenth, another layout by far more
    assert share_of_close(statement(keywords), expected) > 0.97

    for name in gemm1:
        keywords[name] = halves_swapped(keywords[name])
    assert share_of_close(statement(keywords), expected) < 0.5


# ---- the build of one runner ----


RUNNER = Path("moe_gemm_kernels_bf16_fp8.cu")
BINDING = Path("flashinfer_cutlass_fused_moe_binding.cu")
NOT_NEEDED = [Path("moe_gemm_kernels_fp8_fp8.cu"), Path("gemm_1.generated.cu")]


@dataclass
class Spec:
    """As much of FlashInfer's JitSpec as is looked at."""

    name: str
    sources: list
    library: Path
    extra_ldflags: list = field(default_factory=list)

    def get_library_path(self):
        return self.library


def test_only_the_needed_sources_are_compiled(monkeypatch, tmp_path):
    full = Spec("full", [RUNNER, BINDING, *NOT_NEEDED], tmp_path / "not there")
    monkeypatch.setattr(build.core, "gen_cutlass_fused_moe_sm90_module", lambda: full)

    spec = build.choose_spec()

    assert spec.sources == [RUNNER, BINDING]
    assert spec.name != full.name


def test_a_compiled_module_is_taken_as_it_is(monkeypatch, tmp_path):
    full = Spec("full", [RUNNER, *NOT_NEEDED], tmp_path)
    monkeypatch.setattr(build.core, "gen_cutlass_fused_moe_sm90_module", lambda: full)
    assert build.choose_spec() is full


def test_a_flashinfer_without_the_runner_is_refused(monkeypatch, tmp_path):
    full = Spec("full", [BINDING], tmp_path / "not there")
    monkeypatch.setattr(build.core, "gen_cutlass_fused_moe_sm90_module", lambda: full)
    with pytest.raises(RuntimeError, match=RUNNER.name):
        build.choose_spec()

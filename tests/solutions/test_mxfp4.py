"""Solutions that serve MXFP4 experts: right answers at all sizes of T, and what they refuse."""

import pytest
import torch
from every_solution import expected_output
from flashinfer_bench.compile import BuilderRegistry
from layer_inputs import DEVICE, arguments
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators import catalogue
from moebench.packing import eligibility, manifest, pack

GEOMETRY = "deepseek-v4-flash-ep8-mxfp4" if DEVICE == "cuda" else "small-mxfp4"
WEIGHTS = ("gemm1_weights", "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale")
SERVING = [
    name
    for name in manifest.solution_names()
    if GEOMETRY in manifest.read_manifest(name).definitions
]


@pytest.fixture(params=SERVING)
def layer(request):
    packed = pack.pack(request.param)[GEOMETRY]
    if reason := eligibility.why_skipped(packed, eligibility.here()):
        pytest.skip(f"{request.param} {reason}")
    return BuilderRegistry.get_instance().build(catalogue.definition(GEOMETRY), packed)


def given(num_tokens, **changes):
    of = arguments(GEOMETRY, num_tokens, DEVICE, seed=num_tokens, offset=16)
    for name in ("gemm1_weights_scale", "gemm2_weights_scale"):
        of[name] -= 1
    return of | changes


def call(layer, arguments):
    output = torch.full_like(arguments["output"], torch.nan)
    layer(*(arguments | {"output": output}).values())
    return output


@pytest.mark.parametrize(
    "num_tokens",
    [3] if DEVICE == "cpu" else [1, 2, 5, 8, 9, 32, 33, 64, 65, 128, 300, 1025, 2000, 8192],
)
def test_it_is_the_references_layer(layer, num_tokens):
    arguments = given(num_tokens)
    output = call(layer, arguments)
    assert torch.isfinite(output).all()
    ratio = matched_ratios(output, expected_output(GEOMETRY, arguments))["relaxed"]
    assert ratio >= TOLERANCES["relaxed"].ratio


@pytest.mark.parametrize("num_tokens", [3] if DEVICE == "cpu" else [1, 8, 40, 500, 3000])
def test_scales_of_any_spread_are_exact(layer, num_tokens):
    """A user would miss: groups that vanish or overflow beside others of their row."""
    arguments = given(num_tokens)
    generator = torch.Generator(DEVICE).manual_seed(num_tokens)
    for name in ("gemm1_weights_scale", "gemm2_weights_scale"):
        drawn = torch.randint(
            -30, 2, arguments[name].shape, generator=generator, device=DEVICE
        ).clamp(max=0)
        spread = arguments[name] + drawn.to(torch.int8)
        spread[..., ::7] = 0
        arguments[name] = spread
    output = call(layer, arguments)
    ratio = matched_ratios(output, expected_output(GEOMETRY, arguments))["relaxed"]
    assert torch.isfinite(output).all() and ratio >= TOLERANCES["relaxed"].ratio


def test_bytes_of_any_name_are_taken(layer):
    """A user would miss: an engine's uint8 weights and e8m0 scales that are refused."""
    arguments = given(3)
    engines = arguments | {name: arguments[name].view(torch.uint8) for name in WEIGHTS}
    for name in ("gemm1_weights_scale", "gemm2_weights_scale"):
        engines[name] = arguments[name].view(torch.float8_e8m0fnu)
    assert torch.equal(call(layer, engines), call(layer, arguments))


@pytest.mark.parametrize("num_tokens", [3] if DEVICE == "cpu" else [3, 2000])
def test_rows_far_apart_are_exact(layer, num_tokens):
    """A user would miss: a row of weights whose scales drift along K, or that is all zeros."""
    arguments = given(num_tokens)
    generator = torch.Generator(DEVICE).manual_seed(num_tokens)
    for name in ("gemm1_weights", "gemm2_weights"):
        scales = arguments[f"{name}_scale"]
        drawn = torch.randint(-12, 3, scales.shape, generator=generator, device=DEVICE)
        drawn = drawn[..., ::4].repeat_interleave(4, -1)[..., : scales.shape[-1]]
        arguments[f"{name}_scale"] = scales + drawn.clamp(max=0).to(torch.int8)
        arguments[name][:, ::3, : arguments[name].shape[-1] // 2] = 0
        arguments[f"{name}_scale"][:, ::3, : scales.shape[-1] // 2] = 0
    output = call(layer, arguments)
    ratio = matched_ratios(output, expected_output(GEOMETRY, arguments))["relaxed"]
    assert torch.isfinite(output).all() and ratio >= TOLERANCES["relaxed"].ratio


@pytest.mark.parametrize("num_tokens", [3] if DEVICE == "cpu" else [3, 2000])
def test_nan_scale_gives_nan(layer, num_tokens):
    arguments = given(num_tokens)
    arguments["topk_ids"][:] = 16
    arguments["gemm2_weights_scale"][0, 5, 1] = -1  # 255
    output = call(layer, arguments)
    assert output[:, 5].isnan().all() and output[:, 6:].isfinite().all()


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_is_refused(layer, name):
    arguments = given(3)
    for wrong in (arguments[name][:-1], arguments[name].float()):
        with pytest.raises(ValueError, match=name):
            call(layer, arguments | {name: wrong})

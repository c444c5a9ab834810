"""Solutions that serve MXFP4 experts: right answers at all sizes of T, whose bytes are taken."""

import pytest
import torch
from every_solution import assert_close, expected_output, run, serving
from layer_inputs import DEVICE
from layer_inputs import arguments as layer_arguments

FIRST_EXPERT = 16
WEIGHTS = ("gemm1_weights", "gemm2_weights")
SCALES = ("gemm1_weights_scale", "gemm2_weights_scale")
FEW = [3] if DEVICE == "cpu" else [1, 8, 40, 500, 3000]
BOTH_PATHS = [3] if DEVICE == "cpu" else [3, 2000]
MANY = [3] if DEVICE == "cpu" else [1, 2, 5, 8, 9, 32, 33, 64, 65, 128, 300, 1025, 2000, 8192]

mxfp4_layers = serving("deepseek-v4-flash-ep8-mxfp4", "small-mxfp4")


def arguments(layer_key, num_tokens=3):
    values = layer_arguments(layer_key, num_tokens, seed=num_tokens, offset=FIRST_EXPERT)
    for name in SCALES:
        values[name] -= 1
    return values


@mxfp4_layers
@pytest.mark.parametrize("num_tokens", MANY)
def test_it_is_the_references_layer(layer, layer_key, num_tokens):
    values = arguments(layer_key, num_tokens)
    expected = expected_output(layer_key, values)
    assert_close(run(layer, values), expected, tolerances=["relaxed"])


@mxfp4_layers
@pytest.mark.parametrize("num_tokens", FEW)
def test_scales_of_any_spread_are_exact(layer, layer_key, num_tokens):
    """Groups that vanish or overflow beside others of their row."""
    values = arguments(layer_key, num_tokens)
    generator = torch.Generator(DEVICE).manual_seed(num_tokens)
    for name in SCALES:
        shape = values[name].shape
        step = torch.randint(-30, 2, shape, generator=generator, device=DEVICE).clamp(max=0)
        values[name] += step.to(torch.int8)
        values[name][..., ::7] = 0

    expected = expected_output(layer_key, values)
    assert_close(run(layer, values), expected, tolerances=["relaxed"])


@mxfp4_layers
def test_bytes_of_any_name_are_taken(layer, layer_key):
    """An engine's uint8 weights and e8m0 scales that are refused."""
    values = arguments(layer_key)
    engines = dict(values)
    for name in WEIGHTS:
        engines[name] = values[name].view(torch.uint8)
    for name in SCALES:
        engines[name] = values[name].view(torch.float8_e8m0fnu)

    expected = expected_output(layer_key, values)
    assert_close(run(layer, engines), expected, tolerances=["relaxed"])


@mxfp4_layers
@pytest.mark.parametrize("num_tokens", BOTH_PATHS)
def test_rows_whose_scales_drift_are_exact(layer, layer_key, num_tokens):
    """A row of weights whose scales drift along K, or half of which is zero."""
    values = arguments(layer_key, num_tokens)
    generator = torch.Generator(DEVICE).manual_seed(num_tokens)
    for weights, scales in zip(WEIGHTS, SCALES, strict=True):
        shape = values[scales].shape
        step = torch.randint(-12, 3, shape, generator=generator, device=DEVICE).clamp(max=0)
        alike = step[..., ::4].repeat_interleave(4, -1)[..., : shape[-1]]
        values[scales] += alike.to(torch.int8)
        values[weights][:, ::3, : values[weights].shape[-1] // 2] = 0
        values[scales][:, ::3, : shape[-1] // 2] = 0

    expected = expected_output(layer_key, values)
    assert_close(run(layer, values), expected, tolerances=["relaxed"])


@mxfp4_layers
@pytest.mark.parametrize("num_tokens", BOTH_PATHS)
def test_nan_scale_gives_nan(layer, layer_key, num_tokens):
    values = arguments(layer_key, num_tokens)
    values["topk_ids"][:] = FIRST_EXPERT
    values["gemm2_weights_scale"][0, 5, 1] = -1  # 255

    output = run(layer, values)

    assert output[:, 5].isnan().all()
    assert output[:, 6:].isfinite().all()

"""Solutions that serve MXFP4 experts: right answers at all sizes of T, whose bytes are taken."""

import pytest
import torch
from every_solution import assert_close, expected_output, run, serving
from layer_inputs import DEVICE, SCALES, WEIGHTS
from layer_inputs import arguments as layer_arguments
from random_values import Draw

FIRST_EXPERT = 16
FEW = [1, 8, 40, 500, 3000]
BOTH_PATHS = [3, 2000]
MANY = [1, 2, 5, 8, 9, 32, 33, 64, 65, 128, 300, 1025, 2000, 8192]
if DEVICE == "cpu":
    FEW = BOTH_PATHS = MANY = [3]

mxfp4_layers = serving("deepseek-v4-flash-ep8-mxfp4", "small-mxfp4")


def arguments(layer_key, num_tokens=3):
    values = layer_arguments(
        layer_key, num_tokens, seed=num_tokens, offset=FIRST_EXPERT
    )
    for name in SCALES:
        values[name] -= 1
    return values


def check_layer(layer, layer_key, values):
    expected = expected_output(layer_key, values)
    assert_close(run(layer, values), expected, tolerances=["relaxed"])


@mxfp4_layers
@pytest.mark.parametrize("num_tokens", MANY)
def test_it_is_the_references_layer(layer, layer_key, num_tokens):
    check_layer(layer, layer_key, arguments(layer_key, num_tokens))


def random_steps(draw, least, end, shape):
    """Return exponents to add to scales, none above zero."""
    step = draw.integers(least, end, *shape, dtype=torch.int64)
    return step.clamp(max=0).to(torch.int8)


@mxfp4_layers
@pytest.mark.parametrize("num_tokens", FEW)
def test_scales_of_any_spread_are_exact(layer, layer_key, num_tokens):
    """Catches groups that vanish or overflow beside others of their row."""
    values = arguments(layer_key, num_tokens)
    draw = Draw(DEVICE, num_tokens)
    for name in SCALES:
        scales = values[name]
        scales += random_steps(draw, -30, 2, scales.shape)
        scales[..., ::7] = 0
    check_layer(layer, layer_key, values)


@mxfp4_layers
def test_bytes_of_any_name_are_taken(layer, layer_key):
    """Catches an engine's uint8 weights and e8m0 scales that are refused."""
    values = arguments(layer_key)
    expected = expected_output(layer_key, values)
    for name in WEIGHTS:
        values[name] = values[name].view(torch.uint8)
    for name in SCALES:
        values[name] = values[name].view(torch.float8_e8m0fnu)

    assert_close(run(layer, values), expected, tolerances=["relaxed"])


@mxfp4_layers
@pytest.mark.parametrize("num_tokens", BOTH_PATHS)
def test_rows_whose_scales_drift_are_exact(layer, layer_key, num_tokens):
    """Catches a row of weights whose scales drift along K, or half of which is zero."""
    values = arguments(layer_key, num_tokens)
    draw = Draw(DEVICE, num_tokens)
    for weight_name, scale_name in zip(WEIGHTS, SCALES, strict=True):
        weights = values[weight_name]
        scales = values[scale_name]
        groups = scales.shape[-1]
        step = random_steps(draw, -12, 3, scales.shape)
        scales += step[..., ::4].repeat_interleave(4, -1)[..., :groups]
        weights[:, ::3, : weights.shape[-1] // 2] = 0
        scales[:, ::3, : groups // 2] = 0
    check_layer(layer, layer_key, values)


@mxfp4_layers
@pytest.mark.parametrize("num_tokens", BOTH_PATHS)
def test_nan_scale_gives_nan(layer, layer_key, num_tokens):
    values = arguments(layer_key, num_tokens)
    values["topk_ids"][:] = FIRST_EXPERT
    values["gemm2_weights_scale"][0, 5, 1] = -1  # 255

    output = run(layer, values)

    assert output[:, 5].isnan().all()
    assert output[:, 6:].isfinite().all()

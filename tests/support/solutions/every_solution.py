"""Run a test for every solution that serves a layer, and call the layer that FIB builds of it."""

import sys
from functools import cache

import pytest
import torch
from flashinfer_bench.compile import BuilderRegistry
from layer_inputs import reference
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators import catalogue
from moebench.packing import eligibility, manifest, pack

SOLUTIONS = manifest.solution_names()
OUTPUT = "output"
FIRST_EXPERT = 64  # of the rank, in `layer_inputs.arguments`

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton compiles for the GPU in this process"
)
each_device = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=interpreted),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)


def slow(*values):
    """Return a parameter of the slow set."""
    return pytest.param(*values, marks=pytest.mark.slow)


def serving(*layer_keys, **allowed_to_fail):
    """Parametrise a test with every solution and each layer key that it serves.

    allowed_to_fail: solution -> why it may fail, for what another project's kernels do or want.
    """
    parameters = []
    for name in SOLUTIONS:
        for layer_key in layer_keys:
            if layer_key in definitions_of(name):
                marks = marks_of(name, layer_key, allowed_to_fail.get(name))
                parameters.append(pytest.param(name, layer_key, marks=marks))
    return pytest.mark.parametrize(("solution", "layer_key"), parameters)


def marks_of(solution, layer_key, why_it_may_fail):
    marks = []
    if layer_key in catalogue.keys_for_gpu():
        marks.append(pytest.mark.gpu)
    if why_it_may_fail:
        expected = AssertionError, ValueError
        marks.append(pytest.mark.xfail(reason=why_it_may_fail, raises=expected))
    if solution == "torch_moe":
        marks.append(pytest.mark.slow)  # `make bench` judges it
    return marks


@cache
def definitions_of(solution):
    return manifest.read_manifest(solution).definitions


@cache
def packed_once(solution):
    """Return layer key -> Solution of one of this repository's, which takes a tenth of a second."""
    return pack.pack(solution)


def built(solution, layer_key):
    """Return the runnable that FIB builds of a packed solution; skip the test where it cannot run
    here.
    """
    packed = packed_once(solution)[layer_key]
    reason = eligibility.why_skipped(packed, eligibility.target_here())
    if reason:
        pytest.skip(f"{solution} {reason}")
    return BuilderRegistry.get_instance().build(catalogue.definition(layer_key), packed)


def in_bf16(layer):
    """Return the function of a built solution for tokens in bf16."""
    function = layer._callable
    module = sys.modules[function.__module__]
    name = f"{function.__name__}_bf16"
    if not hasattr(module, name):
        pytest.skip("takes no tokens in bf16")
    return getattr(module, name)


def run(layer, arguments):
    """Return a fresh output, which held NaN before the call."""
    output = torch.full_like(arguments[OUTPUT], torch.nan)
    layer(*(arguments | {OUTPUT: output}).values())
    return output


def cloned(values):
    """Return values of which the tensors are copies."""
    copies = []
    for value in values:
        copies.append(value.clone() if torch.is_tensor(value) else value)
    return copies


def expected_output(layer_key, arguments):
    inputs = {name: value for name, value in arguments.items() if name != OUTPUT}
    return reference(layer_key).run(**inputs)


def relative_error(output, expected):
    """Return how far an output is from the expected one, relative to its norm."""
    difference = output.float() - expected.float()
    return (difference.norm() / expected.float().norm()).item()


def share_of_close(output, expected, tolerance=0.1):
    """Return the share of values within a tolerance, both relative and absolute."""
    output = output.float()
    expected = expected.float()
    is_close = torch.isclose(output, expected, rtol=tolerance, atol=tolerance)
    return is_close.float().mean()


def assert_close(output, expected, label="", tolerances=("relaxed", "contest")):
    """Check that an output is inside these tolerances."""
    assert torch.isfinite(output).all()
    ratios = matched_ratios(output, expected)
    for name in tolerances:
        assert ratios[name] >= TOLERANCES[name].ratio, f"{label}: {ratios}"


def assert_same_bits(output, expected, label=""):
    differing = (output.view(torch.int16) != expected.view(torch.int16)).sum()
    assert differing == 0, f"{label}: {differing} values differ"


def local_experts_of(layer_key):
    return catalogue.layer_sizes()[layer_key]["num_local_experts"]

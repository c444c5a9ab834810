"""Every solution refuses arguments that its definition does not allow, and writes nothing then."""

import pytest
import torch
from every_solution import OUTPUT, local_experts_of, serving
from layer_inputs import DEVICE, misaligned, strided
from layer_inputs import arguments as layer_arguments
from moebench.operators import catalogue

NUM_TOKENS = 3
OTHER_DTYPE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float16,
    torch.float8_e4m3fn: torch.float8_e5m2,
    torch.int32: torch.int64,
    torch.int8: torch.float32,
}

with_a_router = serving("full", "small")
of_any_kind = serving(
    *("full", "deepseek-v3-ep8-routed", "bf16"),
    *("small", "small-routed", "small-mxfp4", "bf16_small"),
)


FAULTS = [
    "dtype",
    "rank",
    "device",
    "contiguity",
    "alignment",
    "not a tensor",
    "nothing",
]


def with_fault(tensor, fault):
    """Return the tensor with a fault, or what is none."""
    if fault == "dtype":
        return tensor.to(OTHER_DTYPE[tensor.dtype])
    if fault == "rank":
        return tensor[None]
    if fault == "device":
        return tensor.to("meta")
    if fault == "contiguity":
        return strided(tensor)
    if fault == "alignment":
        return misaligned(tensor)
    return [1.0] if fault == "not a tensor" else None


def tensors_of(arguments):
    return {name: value for name, value in arguments.items() if torch.is_tensor(value)}


def assert_refused(layer, arguments, name):
    """Check that the call raises ValueError about `name` and touches no output."""
    output = arguments[OUTPUT]
    has_values = torch.is_tensor(output) and not output.is_meta
    if has_values:
        output.fill_(7)

    with pytest.raises(ValueError, match=name):
        layer(*arguments.values())

    if has_values:
        assert (output == 7).all()


@of_any_kind
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_tensors_are_refused(layer, layer_key, fault):
    """Catches a crash in the GPU, or a wrong answer, instead of a line that says why."""
    right = layer_arguments(layer_key, NUM_TOKENS)
    for name, tensor in tensors_of(right).items():
        assert_refused(layer, right | {name: with_fault(tensor, fault)}, name)


@of_any_kind
def test_wrong_sizes_are_refused(layer, layer_key):
    """Catches reads beyond the end of a tensor that is shorter than the others say."""
    right = layer_arguments(layer_key, NUM_TOKENS)
    definition = catalogue.definition(layer_key)
    axes = {name: spec.shape or [] for name, spec in definition.inputs.items()}
    axes[OUTPUT] = definition.outputs[OUTPUT].shape

    for name, tensor in tensors_of(right).items():
        for place, axis in enumerate(axes[name]):
            # Of tensors that disagree about an axis either one may be named.
            blamed = "|".join(other for other in axes if axis in axes[other])
            for wrong in (resized(tensor, place, -1), resized(tensor, place, 1)):
                assert_refused(layer, right | {name: wrong}, blamed)


def resized(tensor, axis, change):
    """Return a tensor of which one axis is shorter or longer."""
    shape = list(tensor.shape)
    shape[axis] += change
    return torch.empty(shape, dtype=tensor.dtype, device=DEVICE)


SIZES = catalogue.layer_sizes()["full"]
# in "small" as well
FIRST_EXPERT_TOO_LATE = SIZES["num_experts"] - local_experts_of("full") + 1
WRONG_SCALARS = [
    ("local_expert_offset", -1),
    ("local_expert_offset", FIRST_EXPERT_TOO_LATE),
    ("local_expert_offset", 1.5),
    ("local_expert_offset", "64"),
    ("local_expert_offset", None),
    ("local_expert_offset", True),
    ("routed_scaling_factor", True),
    ("routed_scaling_factor", "2.5"),
    ("routed_scaling_factor", None),
]


@with_a_router
@pytest.mark.parametrize(("name", "value"), WRONG_SCALARS)
def test_wrong_scalars_are_refused(layer, layer_key, name, value):
    """Catches experts outside this rank's weights, that is reads out of bounds."""
    assert_refused(layer, layer_arguments(layer_key, NUM_TOKENS) | {name: value}, name)

"""Every solution refuses arguments that its definition does not allow, and writes nothing then."""

import pytest
import torch
from every_solution import OUTPUT, local_experts_of, serving
from layer_inputs import DEVICE
from layer_inputs import arguments as layer_arguments
from moebench.operators import catalogue

NUM_TOKENS = 3
TENSORS = [
    name
    for name, value in layer_arguments("small", NUM_TOKENS, "cpu").items()
    if torch.is_tensor(value)
]
OTHER_DTYPE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float16,
    torch.float8_e4m3fn: torch.float8_e5m2,
}


def strided(tensor):
    """The same shape and values, every second element of a larger tensor."""
    wide = torch.empty((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype)
    return wide.to(tensor.device)[..., ::2].copy_(tensor)


def misaligned(tensor):
    """Contiguous, but one element beyond a multiple of 16 bytes."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return room[1:].view(tensor.shape).copy_(tensor)


FAULTS = {
    "dtype": lambda tensor: tensor.to(OTHER_DTYPE[tensor.dtype]),
    "rank": lambda tensor: tensor[None],
    "device": lambda tensor: tensor.to("meta"),
    "contiguity": strided,
    "alignment": misaligned,
    "not a tensor": lambda tensor: [1.0],
    "nothing": lambda tensor: None,
}


def assert_refused(layer, layer_key, arguments, name):
    """Check that the call raises ValueError about `name` and touches no output."""
    hidden = catalogue.layer_sizes()[layer_key]["hidden_size"]
    output = torch.full((NUM_TOKENS, hidden), 7, dtype=torch.bfloat16, device=DEVICE)
    if name != OUTPUT:
        arguments = arguments | {OUTPUT: output}

    with pytest.raises(ValueError, match=name):
        layer(*arguments.values())

    assert (output == 7).all()


@serving("full", "small")
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_tensors_are_refused(layer, layer_key, fault):
    """A crash in the GPU, or a wrong answer, instead of a line that says why."""
    right = layer_arguments(layer_key, NUM_TOKENS)
    for name in TENSORS:
        arguments = right | {name: FAULTS[fault](right[name])}
        assert_refused(layer, layer_key, arguments, name)
        if name == OUTPUT and fault in ("contiguity", "alignment"):
            assert arguments[OUTPUT].isnan().all()


@serving("full", "small")
def test_wrong_sizes_are_refused(layer, layer_key):
    """Reads beyond the end of a tensor that is shorter than the others say."""
    right = layer_arguments(layer_key, NUM_TOKENS)
    for name in TENSORS:
        for axis in range(right[name].dim()):
            # The logits say how many tokens there are; the next tensor that has them disagrees.
            sets_the_number = (name, axis) == ("routing_logits", 0)
            blamed = "hidden_states" if sets_the_number else name
            for change in (-1, 1):
                shape = list(right[name].shape)
                shape[axis] += change
                wrong = torch.empty(shape, dtype=right[name].dtype, device=DEVICE)
                assert_refused(layer, layer_key, right | {name: wrong}, blamed)


SIZES = catalogue.layer_sizes()["full"]
FIRST_EXPERT_TOO_LATE = SIZES["num_experts"] - local_experts_of("full") + 1  # in "small" as well
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


@serving("full", "small")
@pytest.mark.parametrize(("name", "value"), WRONG_SCALARS)
def test_wrong_scalars_are_refused(layer, layer_key, name, value):
    """Experts outside this rank's weights, that is reads out of bounds."""
    arguments = layer_arguments(layer_key, NUM_TOKENS) | {name: value}
    assert_refused(layer, layer_key, arguments, name)

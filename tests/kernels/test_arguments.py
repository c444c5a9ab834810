"""arguments: each interface is its definition's, and what is wrong with a call is named."""

import pytest
import torch
from layer_inputs import arguments as layer_arguments

INTERFACES = [
    ("small", "DS_ROUTING"),
    ("small-renorm", "RENORM_ROUTING"),
    ("small-routed", "ROUTED"),
]
DEFAULTS = {"local_expert_offset": 0, "routed_scaling_factor": 1.0}


@pytest.fixture
def host(packed_module):
    """arguments.py as it is packed for the small layer."""
    return packed_module("triton_fused_v2", "common.host.arguments", "small")


@pytest.mark.parametrize(("layer_key", "interface"), INTERFACES)
def test_an_interface_is_its_definitions(packed_module, layer_key, interface):
    host = packed_module("triton_fused_v2", "common.host.arguments", layer_key)
    arguments = layer_arguments(layer_key, 3, "cpu")
    interface = getattr(host, interface)

    checked = vars(host.check_arguments(interface, tuple(arguments.values())))

    assert list(interface) == list(arguments)
    for name, value in checked.items():
        if name in arguments:
            assert value is arguments[name]
        elif value is not None:
            assert value == DEFAULTS[name]


def test_arguments_may_be_named(host):
    calls = []
    run = host.takes(host.ROUTED_BF16)(calls.append)
    run(**{name: name for name in reversed(host.ROUTED_BF16)})
    assert calls == [tuple(host.ROUTED_BF16)]


def test_a_missing_and_an_unknown_argument_are_named(host):
    run = host.takes(host.ROUTED_BF16)(list)
    names = list(host.ROUTED_BF16)
    with pytest.raises(TypeError, match="output"):
        run(**dict.fromkeys(names[:-1]))
    with pytest.raises(TypeError, match="output_scale"):
        run(**dict.fromkeys([*names, "output_scale"]))


def test_a_lack_of_memory_is_torchs(host):
    run = host.takes(host.DS_ROUTING)(lambda arguments: bytearray(1 << 62))
    with pytest.raises(torch.OutOfMemoryError):
        run(**layer_arguments("small", 3, "cpu"))


def failing_binding(arguments):
    raise RuntimeError("of CUDA")


def test_an_error_of_a_right_call_keeps_its_name(host):
    run = host.takes(host.DS_ROUTING)(failing_binding)
    with pytest.raises(RuntimeError, match="of CUDA"):
        run(**layer_arguments("small", 3, "cpu"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("routing_bias", None),
        ("gemm2_weights", [1.0]),
        ("output", torch.empty(3)),
        ("routing_logits", 1),
    ],
)
def test_what_a_binding_cannot_convert_is_named(host, name, value):
    run = host.takes(host.DS_ROUTING)(failing_binding)
    with pytest.raises(ValueError, match=f"^{name}: "):
        run(**layer_arguments("small", 3, "cpu") | {name: value})


def test_tensors_without_data_are_refused(host):
    run = host.takes(host.DS_ROUTING)(failing_binding)
    with pytest.raises(ValueError, match="^routing_logits: "):
        run(**layer_arguments("small", 3, "meta"))

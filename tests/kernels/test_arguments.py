"""arguments: each interface is its definition's, and what is wrong with a call is named."""

import pytest
import torch
from layer_inputs import arguments as arguments_of

INTERFACES = {"small": "DS_ROUTING", "small-renorm": "RENORM_ROUTING", "small-routed": "ROUTED"}


@pytest.fixture
def host(packed_module, request):
    """arguments.py as it is packed for a geometry, the first one if the test names none."""
    geometry = getattr(request, "param", "small")
    return packed_module("triton_fused_v2", "common.host.arguments", geometry)


@pytest.mark.parametrize(
    ("host", "geometry"), [(key, key) for key in INTERFACES], indirect=["host"]
)
def test_an_interface_is_its_definitions(host, geometry):
    """Arguments in an order or of a shape that FlashInfer-Bench does not call
    with.
    """
    given = arguments_of(geometry, 3, "cpu")
    interface = getattr(host, INTERFACES[geometry])
    assert list(interface) == list(given)
    checked = vars(host.check_arguments(interface, tuple(given.values())))
    assert all(checked[name] is given[name] for name in given)
    absent = {
        name: value for name, value in checked.items() if name not in given and value is not None
    }
    assert absent.items() <= {"local_expert_offset": 0, "routed_scaling_factor": 1.0}.items()


def test_arguments_may_be_named(host):
    """Which argument is missing or unknown; values in another place than their
    names say.
    """
    got = []
    run = host.takes(host.ROUTED_BF16)(got.append)
    run(**{name: name for name in reversed(host.ROUTED_BF16)})
    assert got == [tuple(host.ROUTED_BF16)]
    for names in (list(host.ROUTED_BF16)[:-1], [*host.ROUTED_BF16, "output_scale"]):
        with pytest.raises(TypeError, match="output"):
            run(**dict.fromkeys(names))


@pytest.mark.parametrize("name", ["local_expert_offset", "routed_scaling_factor"])
def test_a_bool_never_reaches_a_binding(host, name):
    """The binding takes True for 1, and experts of another rank are computed."""
    reached = []
    with pytest.raises(ValueError, match=f"^{name}: "):
        host.takes(host.DS_ROUTING)(reached.append)(
            **arguments_of("small", 3, "cpu") | {name: True}
        )
    assert not reached


def test_a_lack_of_memory_is_torchs(host):
    """A server that dies where it would have tried fewer tokens."""
    with pytest.raises(torch.OutOfMemoryError):
        host.takes(host.DS_ROUTING)(lambda arguments: bytearray(1 << 62))(
            **arguments_of("small", 3, "cpu")
        )


def test_what_a_binding_cannot_convert_is_named(host):
    """Which of eleven arguments is no tensor; an error of CUDA under its own
    name.
    """

    def binding(arguments):
        raise RuntimeError("of CUDA")

    run, given = host.takes(host.DS_ROUTING)(binding), arguments_of("small", 3, "cpu")
    with pytest.raises(RuntimeError, match="of CUDA"):
        run(**given)
    for name, value in {
        "routing_bias": None,
        "gemm2_weights": [1.0],
        "output": torch.empty(3),
        "routing_logits": 1,
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            run(**given | {name: value})
    with pytest.raises(ValueError, match="^routing_logits: "):
        run(**arguments_of("small", 3, "meta"))

"""binding.cu on the host: what it refuses is what arguments.py refuses, argument by argument."""

import shutil

import pytest
import torch
from layer_inputs import arguments as layer_arguments
from layer_inputs import misaligned, strided
from packed_sources import packed_texts

from solutions.common.host.build_library import build_library, load_library

OTHER_FORMS = ("run_renorm", "run_routed", "run_mxfp4")
STUB = """
#include "common/cuda/host/check_cuda.cuh"
#include "common/cuda/host/launch_layer.cuh"

const char kSolutionName[] = "stub";
const int64_t kTokenLimit = 100, kQuantiseLimit = 100;

void launch_layer(const LayerArgs&, const Weights&, DLDevice, ffi::PackedArgs) {}
"""

pytestmark = pytest.mark.skipif(
    shutil.which("nvcc") is None, reason="nvcc is not on the PATH"
)


@pytest.fixture(scope="module")
def binding():
    """The library of binding.cu for the small layer, with a launch_layer that launches nothing."""
    texts = {"stub.cu": STUB}
    for path, text in packed_texts("hopper_fused", "small").items():
        if path.startswith("common/cuda/"):
            texts[path] = text
    return load_library(build_library("test_binding", texts, architecture="9.0a"))


@pytest.fixture
def host(packed_module):
    """arguments.py as it is packed for the small layer."""
    return packed_module("triton_fused_v2", "common.host.arguments", "small")


def refusal(function, arguments):
    """Return the text of the ValueError that a call raises."""
    with pytest.raises(ValueError) as error:
        function(*arguments.values())
    return str(error.value)


def narrow(tensor):
    return tensor[..., :-1].contiguous()


@pytest.mark.parametrize("spoil", [narrow, strided, misaligned, torch.Tensor.bool])
@pytest.mark.parametrize(
    "name", ["routing_bias", "hidden_states_scale", "gemm2_weights", "output"]
)
def test_a_tensor_is_refused_in_the_words_of_python(binding, host, name, spoil):
    arguments = layer_arguments("small", 3, "cpu")
    arguments[name] = spoil(arguments[name])

    def in_python(*values):
        host.check_arguments(host.DS_ROUTING, values)

    assert refusal(binding.run_layer, arguments) == refusal(in_python, arguments)
    assert refusal(binding.run_layer, arguments).startswith(f"{name}: ")


@pytest.mark.parametrize("offset", [-1, 225])
def test_an_offset_that_no_rank_has_is_refused(binding, offset):
    arguments = layer_arguments("small", 3, "cpu") | {"local_expert_offset": offset}
    line = refusal(binding.run_layer, arguments)
    assert line.startswith(f"local_expert_offset: got {offset}")


def test_tokens_in_bf16_have_no_scales(binding, host):
    arguments = layer_arguments("small", 3, "cpu")
    arguments["hidden_states"] = arguments["hidden_states"].bfloat16()
    del arguments["hidden_states_scale"]
    assert list(arguments) == list(host.DS_ROUTING_BF16)

    # nothing is wrong but the device, which is looked at last
    assert refusal(binding.run_layer_bf16, arguments).endswith("want a CUDA device")
    arguments = layer_arguments("small", 3, "cpu")
    assert refusal(binding.run_layer, arguments).endswith("a CUDA device")


def test_a_call_with_an_argument_less_is_refused(binding):
    *most, _ = layer_arguments("small", 3, "cpu").values()
    with pytest.raises(TypeError):
        binding.run_layer(*most)


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_a_form_that_the_library_is_not_built_for_is_refused(binding, name):
    """Catches bytes of one argument read as another's."""
    with pytest.raises(RuntimeError, match="run_layer"):
        getattr(binding, name)(*layer_arguments("small", 3, "cpu").values())

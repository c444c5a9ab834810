"""mma_fused on the GPU, stage by stage, with every architecture's paths and grids forced onto
it.
"""

from itertools import product

import mma_small_layer as small
import pytest
import stage_build
import stage_inputs
import torch

from solutions.common.host.build_library import build_library

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("mma stages")]

DEVICE = "cuda"
OWN = (227, 1, 1)
# every CTA routes all tokens; a grid barrier; the most tokens
COUNTS = {
    "full": (1, 7, 12, 13, 80, 256),
    "qwen3-next": (3, 60, 256),
    "hy3": (3, 80, 256),
    "qwen3.5-397b": (3, 80, 256),
    "step-3.5-flash-ep8": (3, 80, 256),
    "deepseek-v4-pro-ep8-routed": (3, 80, 256),
}
FORCED = [forced for forced in small.CONFIGURATIONS if forced != OWN]
GRIDS = (58, 66, 84, 108, 114)
MXFP4 = ["mxfp4", "long-mxfp4", "split-k-mxfp4"]  # of small layers
BUILDS = [(layer_key, OWN) for layer_key in COUNTS]
BUILDS += [("full", configuration) for configuration in FORCED]
BUILDS += product(MXFP4, small.CONFIGURATIONS)


def build(key):
    layer_key, configuration = key
    flags = small.flags(configuration)
    if layer_key in small.LAYERS:
        sources = small.stage_sources("full", small.LAYERS[layer_key])
    else:
        sources = small.stage_sources(layer_key)
    return build_library("mma_stages", sources, architecture=small.HERE, flags=flags)


@pytest.fixture(scope="session")
def libraries():
    """Definition and configuration -> compiled test build."""
    return stage_build.build_all(build, BUILDS, small.HERE)


def inputs(layer_key, num_tokens):
    """Return a layer, and a call's arguments on the GPU."""
    layer = stage_inputs.sizes(layer_key)
    tokens = stage_inputs.tokens(layer, num_tokens, DEVICE)
    return layer, tokens | stage_inputs.weights_once(layer_key)


def check(library, layer, arguments, ctas=0):
    """Run the layer; assert that each stage is right. Returns the output."""
    output, arrays, _ = stage_build.call(library, layer, arguments, ctas)
    assert not arrays["counters"].any(), "counters are zero after a launch"
    h, h_scale = small.handed_out(arrays, layer)
    fault = small.first_fault(layer, arguments, output, h, h_scale)
    assert fault is None, fault
    return output


@pytest.mark.parametrize(("layer_key", "num_tokens"), stage_build.cases(COUNTS))
def test_every_stage_is_right(libraries, layer_key, num_tokens):
    check(libraries[layer_key, OWN], *inputs(layer_key, num_tokens))


@pytest.mark.parametrize("num_tokens", [7, 80, 256])
@pytest.mark.parametrize("configuration", FORCED, ids=small.CONFIGURATIONS.get)
def test_other_architectures_paths(libraries, configuration, num_tokens):
    check(libraries["full", configuration], *inputs("full", num_tokens))


@pytest.mark.parametrize("num_tokens", [1, 9, 40, 256])
@pytest.mark.parametrize(
    "configuration", small.CONFIGURATIONS, ids=small.CONFIGURATIONS.get
)
@pytest.mark.parametrize("name", MXFP4)
def test_mxfp4_weights(libraries, name, configuration, num_tokens):
    layer = small.LAYERS[name]
    tokens = stage_inputs.tokens(layer, num_tokens, DEVICE)
    arguments = tokens | small.mxfp4_weights(layer, DEVICE)
    check(libraries[name, configuration], layer, arguments)


@pytest.mark.parametrize("num_tokens", [7, 80])
@pytest.mark.parametrize("ctas", GRIDS)
def test_other_grids(libraries, ctas, num_tokens):
    check(libraries["full", OWN], *inputs("full", num_tokens), ctas)


@pytest.mark.parametrize("num_tokens", [1, 80])
def test_a_call_repeats_bit_for_bit(libraries, num_tokens):
    layer, arguments = inputs("full", num_tokens)
    library = libraries["full", OWN]
    first = check(library, layer, arguments)
    for _ in range(20):
        again, _, _ = stage_build.call(library, layer, arguments, 0)
        assert torch.equal(again, first)


def test_all_tokens_at_few_experts(libraries):
    """m_blocks of 16 rows, sixteen for an expert, as the largest tiles are hardly met otherwise."""
    layer = stage_inputs.sizes("full")
    arguments = stage_inputs.tokens(layer, 256, DEVICE)
    offset = arguments["local_expert_offset"]
    logits = arguments["routing_logits"]
    logits[:, offset : offset + 3] += 3
    clear = stage_inputs.is_clear(layer, logits, arguments["routing_bias"])
    assert clear.sum() > 128

    scales = arguments["hidden_states_scale"]
    arguments["routing_logits"] = logits[clear].contiguous()
    arguments["hidden_states"] = arguments["hidden_states"][clear].contiguous()
    arguments["hidden_states_scale"] = scales[:, clear].contiguous()
    check(libraries["full", OWN], layer, arguments | stage_inputs.weights_once("full"))

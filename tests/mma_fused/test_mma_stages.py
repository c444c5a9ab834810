"""mma_fused on the GPU, stage by stage, with every architecture's paths and grids forced onto
it.
"""

import hopper_stages as stages
import mma_small_layer as small
import pytest
import torch

from solutions.common.host.build_library import build_library

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("mma stages")]

DEVICE = "cuda"
OWN = (227, 1, 1)
# every CTA routes all tokens; a grid barrier; the most tokens
COUNTS = {"full": (1, 7, 12, 13, 80, 256), "qwen3-next": (3, 60, 256)}
COUNTS |= dict.fromkeys(
    ("hy3", "qwen3.5-397b", "step-3.5-flash-ep8", "deepseek-v4-pro-ep8-routed"), (3, 80, 256)
)
FORCED = [configuration for configuration in small.CONFIGURATIONS if configuration != OWN]
GRIDS = (58, 66, 84, 108, 114)
BUILDS = [(layer_key, OWN) for layer_key in COUNTS] + [
    ("full", configuration) for configuration in FORCED
]


@pytest.fixture(scope="session")
def libraries():
    """Definition and configuration -> compiled test build."""

    def build(of):
        layer_key, configuration = of
        flags = small.flags(configuration)
        return build_library(
            "mma_stages", small.stage_sources(layer_key), architecture=small.HERE, flags=flags
        )

    return stages.build_all(build, BUILDS, small.HERE)


def drawn(layer_key, num_tokens):
    of = stages.sizes(layer_key)
    return of, stages.tokens(of, num_tokens, DEVICE) | stages.weights_once(layer_key)


def check(library, of, arguments, ctas=0):
    """Run the layer; assert that each stage is right. Returns the output."""
    output, arrays, _ = stages.call(library, of, arguments, ctas)
    assert not arrays["counters"].any(), "counters are zero after a launch"
    assert (
        fault := small.first_fault(of, arguments, output, *small.handed_out(arrays, of))
    ) is None, fault
    return output


@pytest.mark.parametrize(
    ("layer_key", "num_tokens"), [(name, count) for name in COUNTS for count in COUNTS[name]]
)
def test_every_stage_is_right(libraries, layer_key, num_tokens):
    """A user would miss: which stage of a wrong layer to look at, at the real widths of six
    models.
    """
    check(libraries[layer_key, OWN], *drawn(layer_key, num_tokens))


@pytest.mark.parametrize("num_tokens", [7, 80, 256])
@pytest.mark.parametrize("configuration", FORCED, ids=small.CONFIGURATIONS.get)
def test_other_architectures_paths(libraries, configuration, num_tokens):
    """A user would miss: wrong answers on a GPU that nobody here has: cp.async, integer unpacking,
    less memory.
    """
    check(libraries["full", configuration], *drawn("full", num_tokens))


@pytest.mark.parametrize("num_tokens", [7, 80])
@pytest.mark.parametrize("ctas", GRIDS)
def test_other_grids(libraries, ctas, num_tokens):
    """A user would miss: columns that no CTA has on a GPU with fewer multiprocessors."""
    check(libraries["full", OWN], *drawn("full", num_tokens), ctas)


@pytest.mark.parametrize("num_tokens", [1, 80])
def test_a_call_repeats_bit_for_bit(libraries, num_tokens):
    """A user would miss: answers that differ from call to call."""
    of, arguments = drawn("full", num_tokens)
    first = check(libraries["full", OWN], of, arguments)
    for _ in range(20):
        assert torch.equal(stages.call(libraries["full", OWN], of, arguments, 0)[0], first)


def test_all_tokens_at_few_experts(libraries):
    """A user would miss: m_blocks of 16 rows, sixteen for an expert, as the largest tiles are
    hardly met otherwise.
    """
    of = stages.sizes("full")
    arguments = stages.tokens(of, 256, DEVICE)
    offset = arguments["local_expert_offset"]
    arguments["routing_logits"][:, offset : offset + 3] += 3
    clear = stages.is_clear(of, arguments["routing_logits"], arguments["routing_bias"])
    assert clear.sum() > 128
    for name in ("routing_logits", "hidden_states"):
        arguments[name] = arguments[name][clear].contiguous()
    arguments["hidden_states_scale"] = arguments["hidden_states_scale"][:, clear].contiguous()
    check(libraries["full", OWN], of, arguments | stages.weights_once("full"))

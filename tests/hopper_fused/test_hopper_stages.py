"""hopper_fused stage by stage: a test build hands out route's, permute's, gemm1's and gemm2's
results.
"""

import hopper_faults
import pytest
import stage_build
import stage_inputs
import torch

DEVICE = "cuda"
H_SPLIT = 1  # FP8 parts of h above 1024 tokens
# Definition -> token counts: every CTA routes all tokens; a grid barrier; four kernels with h in
# two parts; in one; two column passes.
COUNTS = {
    "full": (3, 80, 300, 1100, 8200),
    "qwen3-next": (3, 60, 200, 1100),
    "kimi-k2-ep8": (3, 80, 200, 1100),
    "minimax-m2": (3, 80, 200, 1100),
    "small-one-group": (3, 30, 200, 8200),  # widths that are no whole pairs of tiles
    "step-3.5-flash-ep8": (3, 80, 300, 2100),  # clamped
    "deepseek-v3-ep8-routed": (3, 80, 300, 1100),
    "qwen3-next-routed": (3, 60, 200, 1100),  # all experts are local
    "qwen3-235b-tp4": (3, 60, 200),  # narrow experts, of three K blocks
}


def build(layer_key):
    return stage_build.build(stage_build.sources(layer_key))


@pytest.fixture(scope="session")
def libraries():
    """Definition -> compiled test build."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90")
    return stage_build.build_all(build, COUNTS)


@pytest.mark.gpu
@pytest.mark.parametrize(("layer_key", "num_tokens"), stage_build.cases(COUNTS))
def test_every_stage_is_right(libraries, layer_key, num_tokens):
    layer = stage_inputs.sizes(layer_key)
    tokens = stage_inputs.tokens(layer, num_tokens, DEVICE)
    arguments = tokens | stage_inputs.weights_once(layer_key)

    output, arrays, numbers = stage_build.call(
        libraries[layer_key], layer, arguments, H_SPLIT
    )

    assert ("mask" in arrays) == (num_tokens <= numbers["few_tokens"])
    fault = hopper_faults.first_fault(arrays, numbers, layer, arguments, output)
    assert fault is None, fault

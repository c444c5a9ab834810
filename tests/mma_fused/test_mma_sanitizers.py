"""compute-sanitizer's tools on a small layer through mma_fused's one launch, with sm_90's paths and with cp.async."""

import mma_small_layer as small
import pytest
import sanitizer

from solutions.kernels.build_library import build_library

KERNEL = ("--kernel-name", "kernel_substring=fused_layer")
CONFIGURATIONS = [(227, 1, 1), (163, 0, 0)]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=small.CONFIGURATIONS.get)
@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_clean(tool, configuration):
    """A user would miss: bytes outside a tensor, or a stage that is loaded again before all lanes have read it."""
    flags = (*small.flags(configuration), "-lineinfo")
    library = build_library(
        "mma_stages", small.stage_sources("full", small.LAYERS["ds"]), architecture="9.0", flags=flags
    )
    found, said = sanitizer.errors((*sanitizer.TOOLS[tool], *KERNEL), small.__file__, library, len(small.COUNTS))
    assert found == 0, said

"""compute-sanitizer's tools on a small layer through mma_fused's one launch, with sm_90's paths and with cp.async."""

import mma_small_layer as small
import pytest
import sanitizer

from solutions.kernels.build_library import build_library

KERNEL = ("--kernel-name", "kernel_substring=fused_layer")
CONFIGURATIONS = [(227, 1, 1), (163, 0, 0)]
LAYERS = len(small.COUNTS)
# racecheck does not follow bar.arrive, and then not the __syncthreads after it: here, those that arrive wait, too
ARRIVE, WAIT = "named_barrier_arrive(kBarStored, kTogether);", "named_barrier_sync(kBarStored, kTogether);"

pytestmark = pytest.mark.slow


def errors(tool, configuration, change=lambda text: text, layers=LAYERS):
    """change: of gemm1_swiglu.cuh. layers: as sanitizer.errors takes them."""
    sources = small.stage_sources("full", small.LAYERS["cut"])
    sources["gemm1_swiglu.cuh"] = change(sources["gemm1_swiglu.cuh"])
    flags = (*small.flags(configuration), "-lineinfo")
    library = build_library("mma_stages", sources, architecture="9.0", flags=flags)
    return sanitizer.errors((*sanitizer.TOOLS[tool], *KERNEL), small.__file__, library, layers)


def with_one(text, old, new):
    assert text.count(old) == 1
    return text.replace(old, new)


def waiting(text):
    return with_one(text, ARRIVE, WAIT)


@pytest.mark.gpu
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=small.CONFIGURATIONS.get)
@pytest.mark.parametrize("tool", ["memcheck", "synccheck", "initcheck"])
def test_clean(tool, configuration):
    """A user would miss: bytes outside a tensor, a barrier used against its rules, scratch that is read unwritten."""
    found, said = errors(tool, configuration)
    assert found == 0, said


@pytest.mark.gpu
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=small.CONFIGURATIONS.get)
def test_racecheck(configuration):
    """A user would miss: a stage that is loaded again before all lanes have read it."""
    found, said = errors("racecheck", configuration, waiting)
    assert found == 0, said


@pytest.mark.gpu
def test_racecheck_sees_a_missing_barrier():
    """A user would miss: that racecheck has nothing to say here, whatever is wrong."""
    barrier = "  named_barrier_sync(kBarAmax, kMTiles * kWarp);\n"
    found, said = errors("racecheck", CONFIGURATIONS[0], lambda text: with_one(waiting(text), barrier, ""), None)
    assert found > 0, said

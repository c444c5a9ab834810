"""compute-sanitizer's tools on a small layer through mma_fused's one launch, with sm_90's paths and
with cp.async.
"""

from pathlib import Path

import mma_small_layer as small
import pytest
import sanitizer
from packed_sources import with_one_replaced

from solutions.common.host.build_library import build_library

KERNEL = ("--kernel-name", "kernel_substring=fused_layer")
CONFIGURATIONS = [(227, 1, 1), (163, 0, 0)]
LAYERS = len(small.COUNTS)
MBARRIERS = Path(__file__).with_name("mma_mbarriers.cuh")
INIT = (
    "named_barriers_init(Config::kMTiles * kWarp, (Config::kWarps > Config::kMTiles ? "
    "Config::kMTiles + 1 : Config::kMTiles) * kWarp);"
)
NAMED = "__device__ __forceinline__ void named_barrier_"
ZERO_SLABS = "  zero_slabs("
ROW_MAXIMA = "  AmaxBarrier::sync();\n"

each_layer = pytest.mark.parametrize("name", ["split-k", "split-k-mxfp4"])
each_configuration = pytest.mark.parametrize(
    "configuration", CONFIGURATIONS, ids=small.CONFIGURATIONS.get
)


def errors(tool, configuration, sources, layers=LAYERS):
    """Return how many errors a tool reports, and what it said. layers: as sanitizer.errors takes
    them.
    """
    flags = (*small.flags(configuration), "-lineinfo")
    library = build_library("mma_stages", sources, architecture=small.HERE, flags=flags)
    options = (*sanitizer.TOOLS[tool], *KERNEL)
    return sanitizer.errors(options, small.__file__, library, layers)


def plain_sources(name="split-k"):
    return small.stage_sources("full", small.LAYERS[name])


def sources_with_mbarriers(name="split-k"):
    """Return the sources with mbarriers for named barriers. racecheck follows these, but no
    barriers of some of the warps.
    """
    sources = plain_sources(name)
    named = sources["barrier.cuh"]
    first = named.index(f"{NAMED}sync(")
    end = named.index("}\n", named.index(f"{NAMED}arrive(")) + 2
    sources["barrier.cuh"] = named[:first] + MBARRIERS.read_text() + named[end:]
    sources["fused_layer.cu"] = with_one_replaced(
        sources["fused_layer.cu"], ZERO_SLABS, f"  {INIT}\n{ZERO_SLABS}"
    )
    return sources


def sources_without_row_maxima():
    """Return the sources with mbarriers, but for one barrier that is needed."""
    sources = sources_with_mbarriers()
    sources["gemm1_swiglu.cuh"] = with_one_replaced(
        sources["gemm1_swiglu.cuh"], ROW_MAXIMA, ""
    )
    return sources


def test_changes_fit_the_sources():
    """Where there is no GPU, the change that racecheck needs is made all the same."""
    before = plain_sources()
    after = sources_without_row_maxima()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"barrier.cuh", "fused_layer.cu", "gemm1_swiglu.cuh"}


@pytest.mark.gpu
@pytest.mark.slow
@each_layer
@each_configuration
@pytest.mark.parametrize("tool", ["memcheck", "synccheck", "initcheck"])
def test_clean(tool, configuration, name):
    count, report = errors(tool, configuration, plain_sources(name))
    assert count == 0, report


@pytest.mark.gpu
@pytest.mark.slow
@each_layer
@each_configuration
def test_racecheck(configuration, name):
    count, report = errors("racecheck", configuration, sources_with_mbarriers(name))
    assert count == 0, report


@pytest.mark.gpu
@pytest.mark.slow
def test_racecheck_sees_a_missing_barrier():
    sources = sources_without_row_maxima()
    count, report = errors("racecheck", CONFIGURATIONS[0], sources, layers=None)
    assert count > 0, report

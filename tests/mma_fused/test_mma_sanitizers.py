"""compute-sanitizer's tools on a small layer through mma_fused's one launch, with sm_90's paths and
with cp.async.
"""

from pathlib import Path

import mma_small_layer as small
import pytest
import sanitizer

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


def errors(tool, configuration, change=None, layers=LAYERS):
    """change: of the sources, in place. layers: as sanitizer.errors takes them."""
    sources = small.stage_sources("full", small.LAYERS["split-k"])
    if change:
        change(sources)
    flags = (*small.flags(configuration), "-lineinfo")
    library = build_library("mma_stages", sources, architecture=small.HERE, flags=flags)
    return sanitizer.errors((*sanitizer.TOOLS[tool], *KERNEL), small.__file__, library, layers)


def with_one(text, old, new):
    assert text.count(old) == 1
    return text.replace(old, new)


def with_mbarriers(sources):
    """In place: named barriers become mbarriers. racecheck follows these, but no barriers of some
    of the warps.
    """
    named, kernel = sources["barrier.cuh"], sources["fused_layer.cu"]
    first, last = (
        named.index(f"{NAMED}sync("),
        named.index("}\n", named.index(f"{NAMED}arrive(")) + 2,
    )
    sources["barrier.cuh"] = named[:first] + MBARRIERS.read_text() + named[last:]
    sources["fused_layer.cu"] = with_one(kernel, ZERO_SLABS, f"  {INIT}\n{ZERO_SLABS}")


def without_row_maxima(sources):
    """In place: as with_mbarriers, but for one barrier that is needed."""
    with_mbarriers(sources)
    barrier = "  AmaxBarrier::sync();\n"
    sources["gemm1_swiglu.cuh"] = with_one(sources["gemm1_swiglu.cuh"], barrier, "")


@pytest.mark.parametrize("change", [with_mbarriers, without_row_maxima])
def test_changes_fit_the_sources(change):
    """A user would miss: that the kernel has other lines now, and racecheck cannot be run on it."""
    sources = small.stage_sources("full", small.LAYERS["split-k"])
    before = dict(sources)
    change(sources)
    assert MBARRIERS.read_text() in sources["barrier.cuh"] and INIT in sources["fused_layer.cu"]
    assert (sources["gemm1_swiglu.cuh"] == before["gemm1_swiglu.cuh"]) == (change is with_mbarriers)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=small.CONFIGURATIONS.get)
@pytest.mark.parametrize("tool", ["memcheck", "synccheck", "initcheck"])
def test_clean(tool, configuration):
    """A user would miss: bytes outside a tensor, a barrier used against its rules, scratch that is
    read unwritten.
    """
    found, said = errors(tool, configuration)
    assert found == 0, said


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=small.CONFIGURATIONS.get)
def test_racecheck(configuration):
    """A user would miss: a stage that is loaded again before all lanes have read it."""
    found, said = errors("racecheck", configuration, with_mbarriers)
    assert found == 0, said


@pytest.mark.gpu
@pytest.mark.slow
def test_racecheck_sees_a_missing_barrier():
    """A user would miss: that racecheck has nothing to say here, whatever is wrong."""
    found, said = errors("racecheck", CONFIGURATIONS[0], without_row_maxima, None)
    assert found > 0, said

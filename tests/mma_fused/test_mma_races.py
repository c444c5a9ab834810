"""mma_fused's one launch on the host under ThreadSanitizer, which takes each CUDA thread for a
thread: accesses that no barrier, counter or mbarrier orders are reported (races_on_host.h).
"""

import subprocess
from dataclasses import dataclass

import mma_host
import mma_small_layer as small
import pytest
from packed_sources import with_one_replaced

CTAS = 3  # of tiny's four column tiles each has one alone, and all share the last
TMA = (99, 1, 1)
CP_ASYNC = (99, 0, 1)
RACE = "ThreadSanitizer: data race"
TOKENS = {"tiny": 5, "tiny-split-k": 2, "long": 5, "tiny-mxfp4": 5, "long-mxfp4": 5}
GRID_BARRIER = 20  # tokens
# How weights are copied is one thing for FP8 and one for MXFP4, with either length of tile.
LAUNCHES = [(name, TMA) for name in TOKENS]
LAUNCHES += [("tiny", CP_ASYNC), ("long-mxfp4", CP_ASYNC)]


@dataclass
class Barrier:
    """A place of the source that orders accesses."""

    file: str
    text: str
    without: str = ""  # in place of the text
    layer: str = "tiny"
    configuration: tuple = TMA


BARRIERS = {
    "a stage is read": Barrier(
        "weight_pipeline.cuh",
        "    __syncwarp();\n    load(stage, read);",
        without="    load(stage, read);",
    ),
    "other lanes' copies": Barrier(
        "weight_pipeline.cuh",
        "    __syncwarp();  // the other lanes' copies\n",
        configuration=CP_ASYNC,
    ),
    "the scales before are read": Barrier(
        "weight_pipeline.cuh",
        "      __syncwarp();  // the other lanes' copies\n",
        layer="long-mxfp4",
    ),
    "scales are wide": Barrier(
        "mxfp4_tile.cuh", "  __syncwarp();  // wide\n", layer="tiny-mxfp4"
    ),
    "sums are read": Barrier(
        "sum_over_warps.cuh", "  __syncthreads();  // the sums before are read\n"
    ),
    "h before its signal": Barrier("gemm1_swiglu.cuh", "    StoredBarrier::sync();\n"),
    "sums": Barrier(
        "gemm2_combine.cuh",
        "  if constexpr (!Config::kShortTiles) __syncwarp();",
        layer="long",
    ),
    "row maxima": Barrier("gemm1_swiglu.cuh", "  AmaxBarrier::sync();\n"),
    "a first part's sums": Barrier(
        "gemm1_swiglu.cuh", "counter_wait(", without="//", layer="tiny-split-k"
    ),
    "others' sums": Barrier(
        "gemm2_combine.cuh", "      counter_wait(slabs_stored, sharing_ctas);\n"
    ),
    # with short tiles the barrier after it orders the same
    "before gemm1": Barrier(
        "fused_layer_on_host.cuh",
        "  __syncthreads();\n  WeightPipeline",
        without="  WeightPipeline",
        layer="long",
    ),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def sanitizer(tmp_path_factory):
    program = tmp_path_factory.mktemp("tsan") / "none"
    command = ["c++", "-fsanitize=thread", "-x", "c++", "-", "-o", program]
    if subprocess.run(command, input=b"int main() {}", capture_output=True).returncode:
        pytest.skip("the compiler has no ThreadSanitizer")


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A function of sources and a configuration that returns the program."""
    monkeypatch.setenv("TSAN_OPTIONS", "history_size=3 atexit_sleep_ms=0")

    def get(texts, configuration):
        flags = ("-g1", "-fsanitize=thread")
        return mma_host.build(texts, mma_host.LAYER, configuration, tmp_path, *flags)

    return get


@pytest.mark.parametrize(("name", "configuration"), LAUNCHES, ids=str)
def test_every_access_is_ordered(build, tmp_path, name, configuration):
    layer = small.LAYERS[name]
    program = build(mma_host.sources(layer), configuration)
    counts = [TOKENS[name]]
    if name == "tiny":
        counts.append(GRID_BARRIER)

    for num_tokens in counts:
        arguments = small.inputs(layer, num_tokens, seed=num_tokens)
        launch = mma_host.launch(program, layer, arguments, CTAS, tmp_path)
        assert RACE not in launch.process.stderr, launch.process.stderr[:4000]
        assert launch.process.returncode == 0
        assert launch.split_tiles == (name == "tiny-split-k")
        fault = launch.first_fault(layer, arguments)
        assert fault is None, fault


@pytest.mark.parametrize("name", BARRIERS)
def test_a_missing_barrier_is_noticed(build, tmp_path, name):
    barrier = BARRIERS[name]
    layer = small.LAYERS[barrier.layer]
    texts = mma_host.sources(layer)
    changed = with_one_replaced(texts[barrier.file], barrier.text, barrier.without)
    program = build(texts | {barrier.file: changed}, barrier.configuration)
    num_tokens = TOKENS[barrier.layer]
    arguments = small.inputs(layer, num_tokens, seed=num_tokens)
    try:
        report = mma_host.launch(
            program, layer, arguments, CTAS, tmp_path
        ).process.stderr
    except AssertionError as error:
        # a warp that read no schedule may have written no result
        report = str(error)
    assert RACE in report

"""mma_fused's one launch on the host under ThreadSanitizer, which takes each CUDA thread for a
thread: accesses that no barrier, counter or mbarrier orders are reported (races_on_host.h)."""

import subprocess

import hopper_stages as stages
import mma_host
import mma_small_layer as small
import pytest

CTAS = 3  # of tiny's four column tiles each has one alone, and all share the last
TMA, CP_ASYNC = (99, 1, 1), (99, 0, 1)
CONFIGURATIONS = pytest.mark.parametrize("configuration", [TMA, CP_ASYNC], ids=["TMA", "cp.async"])
RACE = "ThreadSanitizer: data race"
TOKENS = {"tiny": 5, "tiny-split-k": 2, "long": 5}
# configuration, file, and the text whose lack must be noticed
BARRIERS = {
    "a stage is read": (
        TMA,
        "weight_pipeline.cuh",
        "    __syncwarp();\n    load(stage, read);",
        "    load(stage, read);",
    ),
    "other lanes' copies": (
        CP_ASYNC,
        "weight_pipeline.cuh",
        "    __syncwarp();  // the other lanes' copies\n",
        "",
    ),
    "sums are read": (
        TMA,
        "sum_over_warps.cuh",
        "  __syncthreads();  // the sums before are read\n",
        "",
    ),
    "h before its signal": (
        TMA,
        "gemm1_swiglu.cuh",
        "    StoredBarrier::sync();\n",
        "",
    ),
    "sums": (TMA, "gemm2_combine.cuh", "  if constexpr (!Config::kShortTiles) __syncwarp();", ""),
    "row maxima": (
        TMA,
        "gemm1_swiglu.cuh",
        "  AmaxBarrier::sync();\n",
        "",
    ),
    "a first part's sums": (TMA, "gemm1_swiglu.cuh", "counter_wait(", "//"),
    "others' sums": (
        TMA,
        "gemm2_combine.cuh",
        "      counter_wait(slabs_stored, sharing_ctas);\n",
        "",
    ),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def sanitizer(tmp_path_factory):
    command = [
        "c++",
        "-fsanitize=thread",
        "-x",
        "c++",
        "-",
        "-o",
        tmp_path_factory.mktemp("tsan") / "none",
    ]
    if subprocess.run(command, input=b"int main() {}", capture_output=True).returncode:
        pytest.skip("the compiler has no ThreadSanitizer")


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Layer, sources, configuration and tokens -> the finished process, and the layer's first wrong
    stage.
    """
    monkeypatch.setenv("TSAN_OPTIONS", "history_size=3")

    def get(layer, texts, configuration, num_tokens):
        of = small.LAYERS[layer]
        program = mma_host.build(
            texts, mma_host.LAYER, configuration, tmp_path, "-g", "-fsanitize=thread"
        )
        arguments = stages.tokens(of, num_tokens, "cpu", seed=num_tokens) | stages.weights(
            of, "cpu"
        )
        done, found = mma_host.launch(program, of, arguments, CTAS, tmp_path)
        assert int(done.stdout) == (layer == "tiny-split-k"), "split-K tiles"
        return done, small.first_fault(of, arguments, *found)

    return get


@CONFIGURATIONS
@pytest.mark.parametrize(
    ("layer", "num_tokens"), [*TOKENS.items(), ("tiny", 20)]
)  # 20: with a grid barrier
def test_every_access_is_ordered(launched, configuration, layer, num_tokens):
    """A user would miss: a value read before it is written, on a GPU or at a load where the timing
    is another.
    """
    done, fault = launched(layer, mma_host.sources(small.LAYERS[layer]), configuration, num_tokens)
    assert RACE not in done.stderr and done.returncode == 0, done.stderr[:4000]
    assert fault is None, fault


@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_missing_barrier_is_noticed(launched, barrier):
    """A user would miss: the test above passing whatever the kernel does."""
    configuration, name, text, instead = BARRIERS[barrier]
    layer = {"a first part's sums": "tiny-split-k", "sums": "long"}.get(barrier, "tiny")
    texts = mma_host.sources(small.LAYERS[layer])
    assert texts[name].count(text) == 1
    texts |= {name: texts[name].replace(text, instead)}
    done, _ = launched(layer, texts, configuration, TOKENS[layer])
    assert RACE in done.stderr


def test_a_missing_barrier_before_gemm1_is_noticed(launched):
    """A user would miss: rows, zeroed sums and the schedule read before they are written."""
    # long, as with short tiles the barrier after it orders the same
    texts = mma_host.sources(small.LAYERS["long"])
    kernel, text = texts["fused_layer_on_host.cuh"], "  __syncthreads();\n  WeightPipeline"
    assert kernel.count(text) == 1
    texts["fused_layer_on_host.cuh"] = kernel.replace(text, "  WeightPipeline")
    try:
        said = launched("long", texts, TMA, TOKENS["long"])[0].stderr
    except AssertionError as error:  # a warp that read no schedule may have written no result
        said = str(error)
    assert RACE in said

"""mma_fused's kernel as it is, on the CPU under ThreadSanitizer, which takes each CUDA thread for a thread: what no
barrier, counter or mbarrier orders is reported (tests/samples/races_on_host.h)."""

import os
import subprocess

import hopper_stages as stages
import mma_small_layer as small
import pytest

OF, CTAS = small.LAYERS["tiny"], 3  # of the four column tiles each CTA has one alone, and all share the last
TMA, CP_ASYNC = (99, 1, 1), (99, 0, 1)
CONFIGURATIONS = pytest.mark.parametrize("configuration", [TMA, CP_ASYNC], ids=["TMA", "cp.async"])
RACE = "ThreadSanitizer: data race"
# configuration, file, and the text whose lack must be noticed
BARRIERS = {
    "a stage is read": (TMA, "weights.cuh", "    __syncwarp();\n    load(stage);", "    load(stage);"),
    "other lanes' copies": (CP_ASYNC, "weights.cuh", "    __syncwarp();  // the other lanes' copies\n", ""),
    "parts are read": (TMA, "gemm1_swiglu.cuh", "    __syncthreads();\n  }\n}", "  }\n}"),
    "row maxima": (TMA, "gemm1_swiglu.cuh", "  named_barrier_sync(kBarAmax, kMTiles * kWarp);\n", ""),
    "others' sums": (TMA, "gemm2_combine.cuh", "      counter_wait(added, splits);\n", ""),
}

pytestmark = pytest.mark.slow


def said(texts, configuration, num_tokens, folder):
    """What ThreadSanitizer says of a launch, its exit status, and the layer's first wrong stage."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    flags = ["-std=c++20", "-O1", "-g", "-w", "-fsanitize=thread", f"-I{folder}", *small.flags(configuration)]
    built = subprocess.run(["c++", *flags, small.SAMPLES / "mma_layer.cc", "-o", folder / "layer"], capture_output=True)
    if b"tsan" in built.stderr:
        pytest.skip("the compiler has no ThreadSanitizer")
    built.check_returncode()
    arguments = stages.tokens(OF, num_tokens, "cpu", seed=num_tokens) | stages.weights(OF, "cpu")
    (folder / "in").write_bytes(small.to_bytes(OF, arguments))
    scalars = (arguments["local_expert_offset"], arguments["routed_scaling_factor"])
    command = map(str, [folder / "layer", folder / "in", folder / "out", CTAS, num_tokens, *scalars])
    env = os.environ | {"TSAN_OPTIONS": "history_size=3"}
    done = subprocess.run(list(command), capture_output=True, text=True, timeout=300, env=env)
    got = small.from_bytes((folder / "out").read_bytes(), OF, num_tokens)
    return done.stderr, done.returncode, small.first_fault(OF, arguments, *got)


@CONFIGURATIONS
@pytest.mark.parametrize("num_tokens", [5, 20])  # every CTA routes all; a grid barrier
def test_every_access_is_ordered(configuration, num_tokens, tmp_path):
    """A user would miss: a value read before it is written, on a GPU or at a load where the timing is another."""
    errors, status, fault = said(small.host_sources(OF), configuration, num_tokens, tmp_path)
    assert RACE not in errors and status == 0, errors[:4000]
    assert fault is None, fault


@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_missing_barrier_is_noticed(barrier, tmp_path):
    """A user would miss: the test above passing whatever the kernel does."""
    configuration, name, text, instead = BARRIERS[barrier]
    texts = small.host_sources(OF)
    assert texts[name].count(text) == 1
    errors, *_ = said(texts | {name: texts[name].replace(text, instead)}, configuration, 5, tmp_path)
    assert RACE in errors

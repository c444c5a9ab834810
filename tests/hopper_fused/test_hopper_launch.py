"""What launch_layer.cu leaves behind when a launch fails, and which calls share a scratch: on the
host, with launches and streams that are made up.
"""

import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import hopper_faults
import pytest
import stage_build
import stage_inputs
import torch
from every_solution import slow
from packed_sources import (
    CUDA,
    include_flags,
    packed_texts,
    with_one_replaced,
    write_texts,
)
from tvm_ffi.libinfo import find_libtvm_ffi

from solutions.common.host.build_library import load_library

SAMPLE = stage_build.SAMPLE.with_name("hopper_launch_layer.cu")
FEW = "100"  # tokens of one launch
MANY = "300"  # of four
PER_THREAD = "2"  # cudaStreamPerThread

pytestmark = pytest.mark.xdist_group("hopper launch")  # one worker builds the program


@pytest.fixture(scope="module")
def program_for(tmp_path_factory):
    """A function of a layer key that returns its program, built once."""
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the PATH")

    @cache
    def build(layer_key):
        return build_program(layer_key, tmp_path_factory.mktemp("launch"))

    return build


@pytest.fixture
def program(program_for):
    return program_for("full")


def build_program(layer_key, folder, solution="hopper_fused"):
    texts = packed_texts(solution, layer_key, CUDA)
    texts["launch_layer_cu.cuh"] = texts.pop("launch_layer.cu")
    write_texts(folder, texts)

    library = Path(find_libtvm_ffi())
    command = ["nvcc", "-std=c++17", "-O1", "-w", "-cudart", "none"]
    command += ["-gencode=arch=compute_90a,code=sm_90a"]
    command += [*include_flags(folder), SAMPLE, "-o", folder / "program"]
    command += [library, "-Xlinker", f"-rpath={library.parent}"]
    subprocess.run(command, check=True)
    return folder / "program"


def events(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@dataclass
class Scratch:
    """What a call finds in its scratch."""

    counter: int
    number: int


def scratches(lines):
    """Return the Scratch of each call."""
    calls = [line.split() for line in lines if line.startswith(("route", "fused"))]
    return [Scratch(int(counter), int(number)) for _, counter, number in calls]


def numbers_of(lines):
    return [scratch.number for scratch in scratches(lines)]


def endings(lines):
    """Return how each call ended."""
    return [line for line in lines if line in ("done", "raised")]


def test_both_maps_are_encoded_before_anything_is_launched(program):
    lines = events(program, "call", MANY)
    launches = ["route 0 0", "launch", "gemm1", "gemm2", "combine"]
    assert lines == ["map", "map", *launches, "done", "kept 1"]


@pytest.mark.parametrize("what", ["launch", "gemm1", "gemm2", "combine"])
def test_a_launch_that_fails_leaves_no_counter_behind(program, what):
    lines = events(
        program, "call", MANY, "fail", what, "call", MANY, "call", MANY, "call", FEW
    )

    assert endings(lines) == ["done", "raised", "done", "done"]
    assert [scratch.counter for scratch in scratches(lines)] == [0, 0, 0, 0]
    first, failed, second, third = numbers_of(lines)
    assert first == failed
    assert second == third
    assert lines[-1] == "kept 1"


def test_a_map_that_fails_launches_nothing(program):
    lines = events(program, "fail", "map", "call", MANY, "call", MANY)
    assert lines[:2] == ["map fails", "raised"]
    assert scratches(lines) == [Scratch(0, 0)]
    assert endings(lines) == ["raised", "done"]


def test_streams_that_share_a_handle_do_not_share_counters(program):
    """cudaStreamPerThread is a stream of each host thread."""
    words = []
    for thread, tokens in (("7", MANY), ("8", MANY), ("7", MANY), ("8", FEW)):
        words += ["stream", PER_THREAD, thread, "call", tokens]
    assert numbers_of(events(program, *words)) == [0, 1, 0, 1]


def test_a_handle_that_is_used_again_has_another_scratch(program):
    """The stream that had the handle before may still be busy; the one before that is forgotten."""
    words = []
    for stream_id in range(10, 30):
        words += ["stream", "640", str(stream_id), "call", MANY]
    lines = events(program, *words)

    for before, after in pairwise(scratches(lines)):
        assert before.number != after.number
        assert before.counter == after.counter == 0
    assert lines[-1] == "kept 2"


def test_a_capture_has_its_own_scratch(program):
    """CUDA does not tell a stream's id while it is captured."""
    words = [
        "stream",
        "640",
        "3",
        "call",
        MANY,
        "capture",
        "5",
        "call",
        MANY,
        "call",
        MANY,
    ]
    words += ["capture", "0", "call", MANY, "capture", "6", "call", FEW]
    lines = events(program, *words)

    first, captured, again, after, later = numbers_of(lines)
    assert captured == again != first
    assert after == first
    assert later != first
    assert endings(lines) == ["done"] * 5


@pytest.mark.parametrize(
    ("layer_key", "most", "most_summed"),
    [
        ("full", 224, 224),
        slow("qwen3-235b-tp4", 80, 96),  # narrow experts
        slow("deepseek-v3-tp4", 80, 128),
    ],
)
def test_how_many_tokens_take_one_launch(program_for, layer_key, most, most_summed):
    program = program_for(layer_key)

    def launches(word, tokens):
        return events(program, word, str(tokens))

    assert "fused 0 0" in launches("call", most)
    assert "route 0 0" in launches("call", most + 1)
    assert "reduced" in launches("sum", most_summed)
    assert launches("sum", most_summed + 1) == ["raised", "kept 0"]


# ---- MXFP4 weights ----

# 64 rows per expert are 2730 tokens and two thirds
MXFP4_LAYER = "deepseek-v4-flash-mxfp4"
TWO_PASSES = 8193  # tokens


def launches_of(lines):
    """Return the kernels between the routing and the end of a call."""
    return lines[lines.index("launch") + 1 : lines.index("done")]


@pytest.mark.slow
def test_weights_are_converted_in_shared_memory_from_64_rows_per_expert_on(program_for):
    program = program_for(MXFP4_LAYER)

    lines = events(program, "call", "2729")
    assert launches_of(lines) == [
        "order_tokens",
        "mxfp4_gemm1",
        "mxfp4_gemm2",
        "combine",
    ]

    lines = events(program, "call", "2730")
    behind = ["queue_unusual", "mxfp4_gemm1", "mxfp4_gemm2"]
    both = ["order_tokens", "converted_gemm1", "converted_gemm2", *behind, "combine"]
    assert launches_of(lines) == both


@pytest.mark.slow
def test_an_unusual_layer_computes_h_again_once_for_both_column_passes(program_for):
    launches = launches_of(events(program_for(MXFP4_LAYER), "call", str(TWO_PASSES)))

    first = launches.index("combine") + 1
    assert launches[:first].count("mxfp4_gemm1") == 1
    assert launches[first:] == [
        "converted_gemm2",
        "queue_unusual",
        "mxfp4_gemm2",
        "combine",
    ]


@pytest.mark.slow
def test_the_invariant_form_converts_all_batches_in_registers(tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the PATH")
    program = build_program(MXFP4_LAYER, tmp_path, "hopper_fused_invariant")

    kernels = ["order_tokens", "mxfp4_gemm1", "mxfp4_gemm2", "combine"]
    for tokens in ("1", "4096"):
        assert launches_of(events(program, "call", tokens)) == kernels


# ---- on the device ----


def failing_sources():
    """Return the test build's sources, with a gemm1 whose launch fails where FAIL_GEMM1 is set."""
    texts = stage_build.sources("full")
    (path,) = [path for path in texts if path.endswith("regimes.cuh")]
    call = "return launch_grouped_gemm1(args, w1_map, h_split, stream);"
    failing = f'if (getenv("FAIL_GEMM1")) return cudaErrorInvalidValue;\n  {call}'
    texts[path] = "#include <cstdlib>\n" + with_one_replaced(texts[path], call, failing)
    return texts


@pytest.mark.gpu
def test_a_layer_after_a_failed_launch_is_right(monkeypatch):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90")
    library = load_library(stage_build.build(failing_sources()))
    layer = stage_inputs.sizes("full")
    arguments = stage_inputs.tokens(layer, 300, "cuda")
    arguments |= stage_inputs.weights_once("full")

    monkeypatch.setenv("FAIL_GEMM1", "1")
    with pytest.raises(RuntimeError):
        stage_build.call(library, layer, arguments, 1)
    monkeypatch.delenv("FAIL_GEMM1")

    for _ in range(3):
        output, arrays, numbers = stage_build.call(library, layer, arguments, 1)
        fault = hopper_faults.first_fault(arrays, numbers, layer, arguments, output)
        assert fault is None, fault

"""What launch_layer.cu leaves behind when a launch fails, and which calls share a scratch: on the
host, with launches and streams that are made up.
"""

import shutil
import subprocess
from pathlib import Path

import hopper_stages as stages
import pytest
import torch
import tvm_ffi.libinfo
from moebench.packing import pack

SAMPLE = stages.SAMPLE.with_name("hopper_launch_layer.cu")
FEW, MANY = "100", "300"  # tokens of one launch, of four
PER_THREAD = "2"  # cudaStreamPerThread

pytestmark = pytest.mark.xdist_group("hopper launch")  # one worker builds the program


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the PATH")
    folder = tmp_path_factory.mktemp("hopper_launch")
    packed = {file.path: file.content for file in pack.pack("hopper_fused")["full"].sources}
    texts = {path: text for path, text in packed.items() if path.endswith(".cuh")}
    texts["launch_layer_cu.cuh"] = packed["launch_layer.cu"]

    folders = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        folders.add(str((folder / path).parent))

    library = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    command = ["nvcc", "-std=c++17", "-O1", "-w", "-cudart", "none"]
    command += ["-gencode=arch=compute_90a,code=sm_90a"]
    command += [*(f"-I{path}" for path in sorted(folders)), SAMPLE, "-o", folder / "program"]
    command += [library, "-Xlinker", f"-rpath={library.parent}"]
    subprocess.run(command, check=True)
    return folder / "program"


def events(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def scratches(lines):
    """Of each call: what its counter held, and the number of its scratch."""
    return [
        tuple(map(int, line.split()[1:])) for line in lines if line.startswith(("route", "fused"))
    ]


def test_both_maps_are_encoded_before_anything_is_launched(program):
    lines = events(program, "call", MANY)
    assert lines == ["map", "map", "route 0 0", "launch", "gemm1", "gemm2", "combine"] + [
        "done",
        "kept 1",
    ]


@pytest.mark.parametrize("what", ["launch", "gemm1", "gemm2", "combine"])
def test_a_launch_that_fails_leaves_no_counter_behind(program, what):
    lines = events(program, "call", MANY, "fail", what, "call", MANY, "call", MANY, "call", FEW)

    assert [line for line in lines if line in ("done", "raised")] == [
        "done",
        "raised",
        "done",
        "done",
    ]
    counters, numbers = zip(*scratches(lines), strict=True)
    assert counters == (0, 0, 0, 0)
    assert numbers[0] == numbers[1] and numbers[2] == numbers[3]
    assert lines[-1] == "kept 1"


def test_a_map_that_fails_launches_nothing(program):
    lines = events(program, "fail", "map", "call", MANY, "call", MANY)
    assert lines[:2] == ["map fails", "raised"]
    assert scratches(lines) == [(0, 0)] and lines[-2] == "done"


def test_streams_that_share_a_handle_do_not_share_counters(program):
    """cudaStreamPerThread is a stream of each host thread."""
    a, b = ("stream", PER_THREAD, "7"), ("stream", PER_THREAD, "8")
    lines = events(program, *a, "call", MANY, *b, "call", MANY, *a, "call", MANY, *b, "call", FEW)
    assert [number for _, number in scratches(lines)] == [0, 1, 0, 1]


def test_a_handle_that_is_used_again_has_another_scratch(program):
    """The stream that had the handle before may still be busy; the one before that is forgotten."""
    words = []
    for stream_id in range(10, 30):
        words += ["stream", "640", str(stream_id), "call", MANY]
    lines = events(program, *words)

    numbers = [number for _, number in scratches(lines)]
    assert all(a != b for a, b in zip(numbers, numbers[1:], strict=False))
    assert {counter for counter, _ in scratches(lines)} == {0}
    assert lines[-1] == "kept 2"


def test_a_capture_has_its_own_scratch(program):
    """CUDA does not tell a stream's id while it is captured."""
    words = ["stream", "640", "3", "call", MANY, "capture", "5", "call", MANY, "call", MANY]
    words += ["capture", "0", "call", MANY, "capture", "6", "call", FEW]
    lines = events(program, *words)

    first, captured, again, after, later = [number for _, number in scratches(lines)]
    assert captured == again != first == after
    assert later not in (first,) and lines[-2] == "done"


# ---- on the device ----


def failing_sources():
    """The test build's sources, with a gemm1 whose launch fails when the program says so."""
    texts = stages.sources("full")
    header = "regimes.cuh"
    (path,) = [path for path in texts if path.endswith(header)]
    call = "return launch_grouped_gemm1(args, w1_map, h_split, stream);"
    assert texts[path].count(call) == 1
    failing = f'if (getenv("FAIL_GEMM1")) return cudaErrorInvalidValue;\n  {call}'
    texts[path] = "#include <cstdlib>\n" + texts[path].replace(call, failing)
    return texts


@pytest.mark.gpu
def test_a_layer_after_a_failed_launch_is_right(monkeypatch):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90")
    library = stages.build_all(lambda _: stages.build(failing_sources()), ["full"])["full"]
    of = stages.sizes("full")
    arguments = stages.tokens(of, 300, "cuda") | stages.weights_once("full")

    monkeypatch.setenv("FAIL_GEMM1", "1")
    with pytest.raises(RuntimeError):
        stages.call(library, of, arguments, 1)
    monkeypatch.delenv("FAIL_GEMM1")

    for _ in range(3):
        output, arrays, numbers = stages.call(library, of, arguments, 1)
        fault = stages.first_fault(arrays, numbers, of, arguments, output)
        assert fault is None, fault

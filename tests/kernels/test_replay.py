"""replay: the second call of a kind starts the same launches as the first, with its own tensors."""

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
import tvm_ffi.cpp
from triton import knobs
from triton.tools.tensor_descriptor import TensorDescriptor

from solutions.common.host import launch, replay

SAMPLES = Path(__file__).parents[1] / "samples"
HEADERS = Path(triton.__file__).parent / "backends/nvidia/include"
BYTES = {"*fp32": 8, "i32": 4, "fp32": 4}  # of a parameter

pytestmark = pytest.mark.xdist_group("replay")  # one worker compiles the stand-in


@dataclass
class Driver:
    """A stand-in for the CUDA driver, and replay.cpp built to ask it."""

    library: object
    what_was_told: object

    def launches(self):
        """Return what was launched since the last call: grid, and parameters as numbers."""
        launches = []
        for line in self.what_was_told().decode().splitlines():
            header, numbers = line.split(": ")
            launches.append((header, list(map(int, numbers.split()))))
        return launches


@pytest.fixture(scope="module")
def built_driver(tmp_path_factory):
    library = tmp_path_factory.mktemp("driver") / "driver.so"
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", f"-I{HEADERS}"]
    command = ["cc", *flags, "-o", library, SAMPLES / "replay_driver.c"]
    subprocess.run(command, check=True)
    what_was_told = ctypes.CDLL(str(library)).what_was_told
    what_was_told.restype = ctypes.c_char_p
    replay_library = tvm_ffi.cpp.load(
        "replay_asks_the_stand_in",
        cpp_files=[str(Path(replay.__file__).with_name("replay.cpp"))],
        extra_cflags=[rf"-DCUDA_DRIVER=\"{library}\"", "-Wall", "-Werror"],
        extra_include_paths=[str(HEADERS)],
        build_directory=str(tmp_path_factory.mktemp("build")),
    )
    return Driver(replay_library, what_was_told)


@pytest.fixture
def driver(built_driver):
    built_driver.launches()  # of the test before
    return built_driver


def call_hooks(name):
    for hook in knobs.runtime.launch_enter_hook.calls:
        hook(name)


class Kernels:
    """Stands in for Triton: launches are written down as launch.py does, and the hooks of all
    launches are called.
    """

    def __init__(self):
        self.started = []
        self.handles = []

    def launch(self, name, grid, signature, **values):
        sizes = [BYTES[kind] for kind in signature.values()]
        handle = (ctypes.c_int * (len(sizes) + 1))(*sizes, 0)
        self.handles.append(handle)
        metadata = SimpleNamespace(
            num_ctas=1,
            num_warps=4,
            shared=100,
            tensordesc_meta=[],
            launch_cooperative_grid=0,
            launch_pdl=0,
            global_scratch_size=0,
            profile_scratch_size=0,
        )
        compiled = SimpleNamespace(
            function=ctypes.addressof(handle),
            metadata=metadata,
            src=SimpleNamespace(signature=signature),
        )
        self.started.append(name)
        call_hooks(name)
        if launch.watching.launches is not None:
            launch.watching.launches.append((compiled, grid, values))

    def layer(self, x, w, factor, output):
        """Two launches: x -> h in scratch, h and w -> output."""
        rows = x.shape[0]
        scratch = torch.empty(3 + 64 * rows, device=x.device)
        _, h = scratch.split_with_sizes((3, 64 * rows))
        first = {"x": "*fp32", "h": "*fp32", "rows": "i32", "factor": "fp32"}
        self.launch("first", (rows,), first, x=x, h=h, rows=rows, factor=factor)
        second = {"w": "*fp32", "h": "*fp32", "y": "*fp32"}
        self.launch("second", (rows, 2), second, w=w, h=h, y=output[1:])


@pytest.fixture
def kernels():
    return Kernels()


def tensors(rows):
    """Return x, w, factor and output."""
    return [torch.randn(rows, 64), torch.randn(32, 64), 2.5, torch.randn(rows + 1, 64)]


def test_a_second_call_starts_the_same_with_its_own_tensors(driver, kernels):
    """Results in the tensors of an earlier call."""
    call = replay.replayed_by(driver.library, kernels.layer)
    call(*tensors(3))
    x, w, factor, output = tensors(3)

    call(x, w, factor, output)

    assert kernels.started == ["first", "second"]  # by the first call
    (first, first_numbers), (second, second_numbers) = driver.launches()
    h = second_numbers[1]
    assert first == "launch 3 1 1 of 128 with 100"
    assert first_numbers == [x.data_ptr(), h, 3, 0x40200000]  # the bits of 2.5
    assert second == "launch 3 2 1 of 128 with 100"
    assert second_numbers == [w.data_ptr(), h, output.data_ptr() + 256]
    assert (h - 12) % 64 == 0, "the same offset into scratch"


CHANGES = {  # of an argument
    "number of rows": (0, lambda x: torch.randn(6, 64)),
    "number": (2, lambda value: 1.25),
    "kind of number": (2, lambda value: 2),
    "dtype": (3, lambda tensor: tensor.double()),
    "alignment": (0, lambda x: torch.empty(5 * 64 + 1)[1:].view(5, 64)),
    "strides": (1, lambda w: torch.empty(32, 128)[:, ::2]),
    "shape": (1, lambda w: w.view(64, 32)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_host_code_may_look_at_makes_another_kind(driver, kernels, change):
    """A wrong argument that is no longer refused, as an earlier one was
    right.
    """
    call = replay.replayed_by(driver.library, kernels.layer)
    call(*tensors(5))
    call(*tensors(5))
    assert len(kernels.started) == 2
    arguments = tensors(5)
    position, changed = CHANGES[change]
    arguments[position] = changed(arguments[position])

    call(*arguments)

    assert len(kernels.started) == 4


def test_work_of_torch_is_never_left_out(driver, kernels):
    """Part of the work left out from the second call on."""

    def run(x, w, factor, output):
        output.zero_()
        kernels.layer(x, w, factor, output)

    call = replay.replayed_by(driver.library, run)
    for _ in range(3):
        call(*tensors(6))
    assert len(kernels.started) == 6
    assert driver.launches() == []


def test_a_launch_that_launch_py_does_not_know_is_never_left_out(driver, kernels):
    def run(x, w, factor, output):
        kernels.layer(x, w, factor, output)
        call_hooks("stray")

    call = replay.replayed_by(driver.library, run)
    for _ in range(3):
        call(*tensors(6))
    assert len(kernels.started) == 6


def test_memory_of_nobody_is_never_replayed(driver, kernels):
    """A pointer that an earlier call had."""
    kept = torch.empty(64)

    def run(x):
        kernels.launch("first", (1,), {"x": "*fp32", "h": "*fp32"}, x=x, h=kept)

    call = replay.replayed_by(driver.library, run)
    for _ in range(3):
        call(torch.zeros(7))
    assert len(kernels.started) == 3


def test_an_error_is_raised_again_and_nothing_is_kept(driver):
    """ValueError from the first wrong call, and silence from the second."""

    def run(x):
        raise ValueError("x: got something else")

    call = replay.replayed_by(driver.library, run)
    for _ in range(2):
        with pytest.raises(ValueError, match="^x: "):
            call(torch.zeros(7))
    assert launch.watching.launches is None


@pytest.mark.parametrize(
    "tensor", [torch.zeros(9, device="meta"), torch.zeros(9, requires_grad=True)], ids=str
)
def test_tensors_that_cpp_cannot_be_given_take_the_ordinary_way(driver, tensor):
    """The line that names a wrong argument, behind an error of the C++ part."""
    calls = []
    call = replay.replayed_by(driver.library, calls.append)
    call(tensor)
    call(tensor)
    assert len(calls) == 2


def test_a_profilers_hook_is_told_of_every_launch(driver, kernels):
    """A profile without the kernels."""
    call = replay.replayed_by(driver.library, kernels.layer)
    call(*tensors(8))

    def hook(metadata):
        pass

    knobs.runtime.launch_enter_hook.add(hook)
    try:
        call(*tensors(8))
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)

    assert kernels.started == ["first", "second"] * 2


# ---- on a GPU ----


@triton.jit
def scale_kernel(x_ptr, h_ptr, size, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(h_ptr + at, tl.load(x_ptr + at, mask=at < size) * factor, mask=at < size)


@triton.jit
def add_kernel(h_desc, w_ptr, output_ptr, one, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS
    at = (row + tl.arange(0, ROWS))[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(output_ptr + at, h_desc.load([row, 0]) + tl.load(w_ptr + at) * one)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [32, 48])
def test_with_real_kernels_and_the_real_driver(rows):
    """Another version of Triton, or of the driver, that hands parameters over
    otherwise.
    """
    launch.launch_quickly(scale_kernel, add_kernel)
    calls = []

    def run(x, w, factor, output):
        calls.append(x.shape)
        h = torch.empty_like(x)
        scale_kernel[(triton.cdiv(x.numel(), 256),)](x, h, x.numel(), factor, BLOCK=256)
        desc = TensorDescriptor(h, list(h.shape), [h.shape[1], 1], [16, 64])
        add_kernel[(x.shape[0] // 16,)](desc, w, output, 1, ROWS=16, COLUMNS=64)

    call = replay.replayed(run)
    current = torch.cuda.current_stream()
    for stream in (current, current, torch.cuda.Stream()):
        x, w = torch.randn(2, rows, 64, device="cuda")
        output = torch.full_like(x, torch.nan)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            call(x, w, 2.5, output)
        torch.cuda.synchronize()
        assert torch.equal(output, x * 2.5 + w)
    assert len(calls) == 1, "Python launched more than the first call"

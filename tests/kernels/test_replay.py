"""replay: the second call of a kind starts the same launches as the first, with its own tensors."""

import ctypes
import subprocess
import weakref
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

pytestmark = pytest.mark.xdist_group("replay")  # one worker compiles the stand-in


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The stand-in for the CUDA driver, and replay.cpp built to ask it."""
    built = tmp_path_factory.mktemp("driver") / "driver.so"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Werror",
        f"-I{HEADERS}",
        "-o",
        built,
        SAMPLES / "replay_driver.c",
    ]
    subprocess.run(command, check=True)
    library = tvm_ffi.cpp.load(
        "replay_asks_the_stand_in",
        cpp_files=[str(Path(replay.__file__).with_name("replay.cpp"))],
        extra_cflags=[rf"-DCUDA_DRIVER=\"{built}\"", "-Wall", "-Werror"],
        extra_include_paths=[str(HEADERS)],
        build_directory=str(tmp_path_factory.mktemp("build")),
    )
    told = ctypes.CDLL(str(built)).what_was_told
    told.restype = ctypes.c_char_p
    return SimpleNamespace(library=library, told=lambda: told().decode().splitlines())


class Kernels:
    """Stands in for Triton: launches are written down as launch.py does, and the hook of all
    launches is called.
    """

    def __init__(self):
        self.started, self.handles = [], []

    def __call__(self, name, grid, signature, descriptors=(), noted=True, **values):
        sizes = []
        for kind in signature.values():
            sizes += {"*": [8], "t": [128, 4, 4, 8, 8], "c": []}.get(kind[0], [4])
        handle = (ctypes.c_int * (len(sizes) + 1))(*sizes, 0)
        self.handles.append(handle)
        off = (
            "launch_cooperative_grid",
            "launch_pdl",
            "global_scratch_size",
            "profile_scratch_size",
        )
        sizes = {"num_ctas": 1, "num_warps": 4, "shared": 100, "tensordesc_meta": list(descriptors)}
        metadata = SimpleNamespace(**sizes, **dict.fromkeys(off, 0))
        source = SimpleNamespace(signature=signature)
        compiled = SimpleNamespace(function=ctypes.addressof(handle), metadata=metadata, src=source)
        self.started.append(name)
        if hook := knobs.runtime.launch_enter_hook.calls:
            hook[0](name)
        if noted and launch.watching.launches is not None:
            launch.watching.launches.append((compiled, grid, values))


@pytest.fixture(autouse=True)
def nothing_told_yet(driver):
    driver.told()


def layer(kernels, **changes):
    """A call of two launches: x -> h in scratch, h and w -> output."""

    def run(x, w, factor, output):
        rows = x.shape[0]
        scratch = torch.empty(3 + 64 * rows, device=x.device)
        ints, h = scratch.split_with_sizes((3, 64 * rows))
        signature = {
            "x": "*fp32",
            "h": "*fp32",
            "rows": "i32",
            "one": "constexpr",
            "factor": "fp32",
        }
        kernels("first", (rows,), signature, x=x, h=h, rows=rows, one=1, factor=factor)
        if "torch" in changes:
            output.zero_()
        if "stray" in changes:
            kernels("stray", (1,), {}, noted=False)
        if "foreign" in changes:
            h = changes["foreign"]
        desc = TensorDescriptor(w, list(w.shape), [w.shape[1], 1], [8, 16])
        meta = {
            "elem_type": 7,
            "elem_size": 4,
            "swizzle": 3,
            "block_size": [8, 16],
            "fp4_padded": False,
        }
        signature = {"w": "tensordesc<fp32[8,16]>", "h": "*fp32", "y": "*fp32", "none": "*fp32"}
        kernels("second", (rows, 2), signature, [meta], w=desc, h=h, y=output[1:], none=None)

    return run


def tensors(rows, dtype=torch.float32):
    return [torch.randn(rows, 64), torch.randn(32, 64), 2.5, torch.randn(rows + 1, 64).to(dtype)]


def test_a_second_call_starts_the_same_with_its_own_tensors(driver):
    """Results in the tensors of an earlier call, or of a call of another
    size.
    """
    kernels = Kernels()
    call = replay.replayed_by(driver.library, layer(kernels))
    call(*tensors(3))
    assert kernels.started == ["first", "second"]
    kept = tensors(3)
    for x, w, factor, output in (kept, tensors(3)):
        call(x, w, factor, output)
        first, second = driver.told()
        assert first.startswith("launch 3 1 1 of 128 with 100: ")
        given_x, h, *numbers = map(int, first.split(": ")[1].split())
        assert given_x == x.data_ptr() and numbers == [3, 0x40200000]  # the bits of 2.5
        assert second.startswith("launch 3 2 1 of 128 with 100: ")
        numbers = list(map(int, second.split(": ")[1].split()))
        described = [w.data_ptr(), 7, 3, 0, 64, 32, 256, 16, 8]
        assert numbers == [*described, 32, 64, 64, 1, h, output.data_ptr() + 256, 0]
        assert (h - 12) % 64 == 0, "the same offset into scratch"
    assert kernels.started == ["first", "second"], "Python launched once"
    call(*tensors(4))
    assert len(kernels.started) == 4, "another size is another kind"


CHANGES = {  # what -> which argument, and what it becomes
    "number": (2, lambda value: 1.25),
    "kind of number": (2, lambda value: 2),
    "dtype": (3, lambda t: t.double()),
    "alignment": (0, lambda t: torch.empty(3 * 64 + 1)[1:].view(3, 64)),
    "strides": (1, lambda t: torch.empty(32, 128)[:, ::2]),
    "shape": (1, lambda t: t.view(64, 32)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_host_code_may_look_at_makes_another_kind(driver, change):
    """A wrong argument that is no longer refused, as an earlier one was
    right.
    """
    kernels = Kernels()
    call = replay.replayed_by(driver.library, layer(kernels))
    for _ in range(2):
        call(*tensors(5))
    assert len(kernels.started) == 2
    changed, (at, to) = tensors(5), CHANGES[change]
    changed[at] = to(changed[at])
    call(*changed)
    assert len(kernels.started) == 4


@pytest.mark.parametrize(
    "changes",
    [{"torch": True}, {"stray": True}, {"foreign": torch.empty(64)}],
    ids=["torch", "stray", "foreign"],
)
def test_what_is_not_accounted_for_is_never_replayed(driver, changes):
    """Part of the work left out from the second call on."""
    kernels = Kernels()
    call = replay.replayed_by(driver.library, layer(kernels, **changes))
    for turn in range(1, 4):
        call(*tensors(6))
        assert len([name for name in kernels.started if name != "stray"]) == 2 * turn
    assert driver.told() == []


def test_an_error_is_raised_again_and_nothing_is_kept(driver):
    """ValueError from the first wrong call, and silence from the second."""

    def run(x):
        raise ValueError("x: got something else")

    call = replay.replayed_by(driver.library, run)
    for _ in range(2):
        with pytest.raises(ValueError, match="x: got"):
            call(torch.zeros(7))
    assert not knobs.runtime.launch_enter_hook.calls and launch.watching.launches is None


@pytest.mark.parametrize(
    "spoil", [lambda x: x.to("meta"), lambda x: x.requires_grad_()], ids=["meta", "gradient"]
)
def test_tensors_that_cpp_cannot_be_given_take_the_ordinary_way(driver, spoil):
    """The line that names a wrong argument, behind an error of the C++ part."""
    given = []
    call = replay.replayed_by(driver.library, given.append)
    for turn in range(1, 3):
        call(spoil(torch.zeros(9)))
        assert len(given) == turn


def test_much_scratch_lives_no_longer_than_the_call_needs_it(driver):
    """Out of memory in the first call of a kind, and only there."""
    kernels = Kernels()

    def run(output):
        small = torch.empty(8, device=output.device)
        kernels("first", (1,), {"h": "*fp32"}, h=small)
        big = torch.empty(
            replay.MOST_SCRATCH + 1, dtype=torch.uint8, device=output.device
        )  # never touched
        kernels("second", (1,), {"h": "*fp32", "big": "*u8"}, h=small, big=big)
        dead = [weakref.ref(small), weakref.ref(big)]
        del small, big
        torch.empty(8, device=output.device)
        assert [ref() for ref in dead] == [None, None]

    call = replay.replayed_by(driver.library, run)
    for turn in range(1, 3):
        call(torch.zeros(10))
        assert len(kernels.started) == 2 * turn


def test_a_profilers_hook_is_told_of_every_launch(driver):
    """A profile without the kernels."""
    kernels, seen = Kernels(), []
    call = replay.replayed_by(driver.library, layer(kernels))
    call(*tensors(8))
    knobs.runtime.launch_enter_hook.add(seen.append)
    try:
        call(*tensors(8))
    finally:
        knobs.runtime.launch_enter_hook.remove(seen.append)
    assert seen == ["first", "second"]


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
def test_with_real_kernels_and_the_real_driver():
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
    for rows in (32, 48):
        for turn in range(3):
            x, w = torch.randn(2, rows, 64, device="cuda")
            output = torch.full_like(x, torch.nan)
            with torch.cuda.stream(
                torch.cuda.Stream() if turn == 2 else torch.cuda.current_stream()
            ):
                torch.cuda.synchronize()
                call(x, w, 2.5, output)
            torch.cuda.synchronize()
            assert torch.equal(output, x * 2.5 + w), (rows, turn)
    assert len(calls) == 2, "Python launched more than the first call of a kind"

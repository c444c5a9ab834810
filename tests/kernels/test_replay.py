"""replay: the second call of a kind starts the same launches as the first, with its own tensors."""

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from solutions.common.host import launch, replay


@triton.jit
def scale_kernel(x_ptr, h_ptr, size, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < size)
    tl.store(h_ptr + at, x * factor, mask=at < size)


@triton.jit
def add_kernel(
    h_desc, w_ptr, output_ptr, factor, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    at = row[:, None] * COLUMNS + column[None, :]
    h = h_desc.load([first, 0])
    w = tl.load(w_ptr + at)
    tl.store(output_ptr + at, h + w * factor)


class Layer:
    """output = x * factor + w, in two launches with scratch and a tensor map between them."""

    def __init__(self):
        launch.launch_quickly(scale_kernel, add_kernel)
        self.calls = 0  # from Python

    def __call__(self, x, w, factor, output):
        self.calls += 1
        rows, columns = x.shape
        count = x.numel()
        h = torch.empty_like(x)
        blocks = triton.cdiv(count, 256)
        scale_kernel[(blocks,)](x, h, count, factor, BLOCK=256)

        descriptor = TensorDescriptor(h, [rows, columns], [columns, 1], [16, 64])
        add_kernel[(rows // 16,)](descriptor, w, output, 1, ROWS=16, COLUMNS=64)


def check_call(call, rows=32, factor=2.5, stream=None):
    """Check a call with tensors of its own."""
    x, w = torch.randn(2, rows, 64, device="cuda")
    output = torch.full_like(x, torch.nan)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        call(x, w, factor, output)
    torch.cuda.synchronize()
    assert torch.equal(output, x * factor + w)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [32, 48])
def test_later_calls_start_the_same_with_their_own_tensors(rows):
    layer = Layer()
    call = replay.replayed(layer)
    check_call(call, rows)
    check_call(call, rows)
    check_call(call, rows, stream=torch.cuda.Stream())
    assert layer.calls == 1


@pytest.mark.gpu
def test_what_host_code_may_look_at_makes_another_kind():
    layer = Layer()
    call = replay.replayed(layer)
    for _ in range(2):
        check_call(call, rows=32, factor=2.5)
        check_call(call, rows=32, factor=1.25)
        check_call(call, rows=48, factor=2.5)
    assert layer.calls == 3


@pytest.mark.gpu
def test_work_of_torch_is_never_left_out():
    layer = Layer()

    def run(x, w, factor, output):
        layer(x, torch.zeros_like(w), factor, output)
        output.add_(w)

    call = replay.replayed(run)
    for _ in range(3):
        check_call(call)
    assert layer.calls == 3


@pytest.mark.gpu
def test_an_error_is_raised_again():
    def run(x):
        raise ValueError("x: got something else")

    call = replay.replayed(run)
    for _ in range(2):
        with pytest.raises(ValueError, match="^x: "):
            call(torch.zeros(7, device="cuda"))


def test_without_a_gpu_calls_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(launch, "SUPPORTED", False)
    layer = Layer()
    assert replay.replayed(layer) is layer

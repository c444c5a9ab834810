"""flashinfer_mono_moe: what FlashInfer's kernel is handed, where it cannot run."""

import importlib
import json
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch
from layer_inputs import DEVICE, WEIGHTS_AND_SCALES
from layer_inputs import arguments as layer_arguments
from moebench.packing.python_package import pack_packages
from random_values import Draw

from solutions.flashinfer_mono_moe.hand_over import (
    MOST_TOKENS,
    hand_over,
    hand_over_ref,
)

fused_moe = pytest.importorskip("flashinfer.fused_moe")
# older releases have none
monomoe = pytest.importorskip("flashinfer.fused_moe.monomoe")
KEY = "qwen3.5-35b"
EXPERTS = 16
INNER = 128
HIDDEN = 512
TOP_K = 2
SCRATCHPAD_BYTES = 1500


# ---- hand_over ----


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def random_layer(num_tokens):
    """Return x, x_scale, w13 and w13_scale."""
    draw = Draw(DEVICE, num_tokens)
    x = draw.fp8(num_tokens, HIDDEN)
    w13 = draw.fp8(EXPERTS, 2 * INNER, HIDDEN)
    x_scale = draw.normal(HIDDEN // 128, num_tokens)
    return x, x_scale, w13, draw.normal(EXPERTS, 2, HIDDEN // 128)


def logits_with_ties(num_tokens):
    """Return logits whose first token has ties, and an infinite and a NaN logit."""
    logits = Draw(DEVICE, 1).normal(num_tokens, EXPERTS).bfloat16()
    logits[0, :8] = -1
    logits[0, 8:] = 1
    for expert, logit in ((1, 1), (3, 9), (5, torch.inf), (7, torch.nan)):
        logits[0, expert] = logit
    return logits


@pytest.mark.parametrize("num_tokens", [1, 5, MOST_TOKENS])
def test_hand_over(num_tokens):
    """Catches another token's scale, an expert that was chosen but not prepared."""
    layer = random_layer(num_tokens)
    logits = logits_with_ties(num_tokens)
    # infinite and NaN ones come last
    finite = torch.where(logits.isfinite(), logits, -3e38)
    chosen = finite.argsort(dim=1, descending=True, stable=True)[:, :TOP_K]
    assert chosen[0].tolist() == [3, 1]  # the first of equal ones

    x, w13, w13_scale = hand_over(logits, *layer, top_k=TOP_K)

    expected_x, expected_w13, expected_w13_scale = hand_over_ref(*layer)
    step = 0 if DEVICE == "cuda" else 2**-7  # the interpreter cuts bf16 off
    torch.testing.assert_close(x, expected_x, rtol=step, atol=0)
    assert torch.equal(bits(w13[chosen]), bits(expected_w13[chosen]))
    assert torch.equal(w13_scale[chosen], expected_w13_scale[chosen])


def test_weights_are_prepared_as_flashinfer_does():
    """Catches gate taken for up."""
    x, x_scale, w13, w13_scale = random_layer(1)
    _, prepared, prepared_scale = hand_over_ref(x, x_scale, w13, w13_scale)
    gate_first = bits(w13).roll(INNER, 1)
    assert torch.equal(bits(prepared), monomoe.interleave_for_tma_wgmma_up(gate_first))
    assert torch.equal(prepared_scale, w13_scale.roll(1, 1))


# ---- the call ----


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A function that imports main.py of the packed solution as if on an H200."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(monomoe, "get_scratchpad_size_bytes", lambda: SCRATCHPAD_BYTES)
    monkeypatch.syspath_prepend(tmp_path)
    pack_packages(["flashinfer_mono_moe"], tmp_path, [KEY])

    yield lambda: importlib.import_module("flashinfer_mono_moe.main")
    for name in list(sys.modules):
        if name.startswith("flashinfer_mono_moe"):
            del sys.modules[name]


@pytest.fixture
def kernel(load, monkeypatch):
    """What stands in for FlashInfer's kernel; `stream` is the current one."""
    kernel = Mock(stream=Mock(cuda_stream=1))
    monkeypatch.setattr(monomoe, "_get_monomoe_module", lambda: kernel)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: kernel.stream)

    def without_kernel(logits, x, x_scale, w13, w13_scale, top_k):
        return x.bfloat16(), w13, w13_scale

    monkeypatch.setattr(load(), "hand_over", without_kernel)
    return kernel


def test_what_is_called(load, kernel):
    """Catches tensors in another order, other routing."""
    arguments = layer_arguments(KEY, MOST_TOKENS, "meta")
    load().run(*arguments.values())

    x, *tensors, _, top_k, scoring, renormalise = kernel.monomoe_topk.call_args.args
    names = ["routing_logits", *WEIGHTS_AND_SCALES, "output"]
    assert [id(tensor) for tensor in tensors] == [id(arguments[name]) for name in names]
    assert x.dtype == torch.bfloat16
    assert top_k == 8
    assert scoring == monomoe._SCORING_SOFTMAX
    assert renormalise is True


def test_streams_have_scratch_of_their_own(load, kernel):
    arguments = layer_arguments(KEY, MOST_TOKENS, "meta")
    for handle in (1, 2, 1):
        kernel.stream.cuda_stream = handle
        load().run(*arguments.values())

    calls = kernel.monomoe_topk.call_args_list
    first, second, third = [call.args[-4] for call in calls]
    assert first is third
    assert abs(first.data_ptr() - second.data_ptr()) >= SCRATCHPAD_BYTES
    assert not second.any()


def test_more_tokens_than_the_kernel_takes_are_refused(load, kernel):
    arguments = layer_arguments(KEY, MOST_TOKENS + 1, "meta")
    with pytest.raises(ValueError, match=f"routing_logits: .* {MOST_TOKENS + 1} "):
        load().run(*arguments.values())


def test_an_older_flashinfer_is_refused(load, monkeypatch):
    monkeypatch.delattr(fused_moe, "mono_moe")
    with pytest.raises(ImportError, match="0.7.2"):
        load()


# ---- ahead of time ----

PROGRAM = f"""
import json
from ahead_of_time import compile_all
from solutions.flashinfer_mono_moe.hand_over import hand_over

def run(*arguments):
    hand_over(*arguments[:5], 8)

for kernel in compile_all(run, "{KEY}", "sm_90", [1, 8], "NVIDIA H200"):
    print(json.dumps([kernel["kernel"], kernel["stack"], kernel["reloads"] or 0]))
"""


@pytest.mark.slow
def test_hand_over_compiles_for_hopper():
    """Catches a kernel that dies in the compiler or spills, on the GPU only."""
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=170
    )

    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines
    for line in lines:
        assert json.loads(line) == ["hand_over_kernel", 0, 0]

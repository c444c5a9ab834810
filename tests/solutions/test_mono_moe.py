"""flashinfer_mono_moe: what FlashInfer's kernel is handed, where it cannot run."""

import importlib
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch
from layer_inputs import DEVICE, arguments
from moebench.packing.python_package import pack_packages

from solutions.flashinfer_mono_moe.hand_over import MOST_TOKENS, hand_over, hand_over_ref

fused_moe = pytest.importorskip("flashinfer.fused_moe")
monomoe = pytest.importorskip("flashinfer.fused_moe.monomoe")  # older releases have none
KEY, EXPERTS, INNER, HIDDEN = "qwen3.5-35b", 16, 128, 512


@pytest.mark.parametrize("num_tokens", [1, 5, MOST_TOKENS])
def test_hand_over(num_tokens):
    """Gate taken for up, another token's scale, an expert that was chosen but
    not prepared.
    """
    torch.manual_seed(num_tokens)
    logits = torch.randn(num_tokens, EXPERTS, device=DEVICE).bfloat16()
    logits[0, :8], logits[0, 8:], logits[0, [1, 3, 5, 7]] = (
        -1,
        1,
        torch.tensor([1, 9, torch.inf, torch.nan]).to(logits),
    )
    shapes = (num_tokens, HIDDEN), (EXPERTS, 2 * INNER, HIDDEN), (4, num_tokens), (EXPERTS, 2, 4)
    x, w13, x_scale, w13_scale = (torch.randn(shape, device=DEVICE) for shape in shapes)
    x, w13 = x.to(torch.float8_e4m3fn), w13.to(torch.float8_e4m3fn)
    chosen = torch.where(logits.isfinite(), logits, -3e38).argsort(
        dim=1, descending=True, stable=True
    )[:, :2]
    assert chosen[0].tolist() == [3, 1]  # the first of equal ones; infinite and NaN ones last
    found_x, *found = hand_over(logits, x, x_scale, w13, w13_scale, top_k=2)
    wanted_x, *wanted = hand_over_ref(x, x_scale, w13, w13_scale)
    torch.testing.assert_close(
        found_x, wanted_x, rtol=0 if DEVICE == "cuda" else 2**-7, atol=0
    )  # the interpreter cuts
    for got, want in zip(found, wanted, strict=True):
        assert torch.equal(got[chosen].view(torch.uint8), want[chosen].view(torch.uint8))
    gate_first = w13.view(torch.uint8).roll(INNER, 1)
    assert torch.equal(wanted[0].view(torch.uint8), monomoe.interleave_for_tma_wgmma_up(gate_first))
    assert torch.equal(wanted[1], w13_scale.roll(1, 1))


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Imports main.py of the packed solution as if on an H200."""
    found = {
        "current_device": None,
        "is_current_stream_capturing": False,
        "get_device_capability": (9, 0),
    }
    for name, value in found.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(monomoe, "get_scratchpad_size_bytes", lambda: 1500)
    monkeypatch.syspath_prepend(tmp_path)
    pack_packages(["flashinfer_mono_moe"], tmp_path, [KEY])
    yield lambda: importlib.import_module("flashinfer_mono_moe.main")
    for name in [name for name in sys.modules if name.startswith("flashinfer_mono_moe")]:
        del sys.modules[name]


def test_what_is_called(load, monkeypatch):
    """Tensors in another order, other routing, scratch that two streams share, a
    ninth token.
    """
    main, module, stream = load(), Mock(), Mock()
    monkeypatch.setattr(monomoe, "_get_monomoe_module", lambda: module)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(
        main,
        "hand_over",
        lambda _, x, x_scale, w13, w13_scale, top_k: (x.bfloat16(), w13, w13_scale),
    )
    given = arguments(KEY, MOST_TOKENS, "meta")
    for stream.cuda_stream in (1, 2, 1):
        main.run(*given.values())
    x, *tensors, _, top_k, scoring, renormalise = module.monomoe_topk.call_args_list[0].args
    assert (x.dtype, top_k, scoring, renormalise) == (
        torch.bfloat16,
        8,
        monomoe._SCORING_SOFTMAX,
        True,
    )
    names = (
        "routing_logits",
        "gemm1_weights",
        "gemm1_weights_scale",
        "gemm2_weights",
        "gemm2_weights_scale",
        "output",
    )
    assert all(tensor is given[name] for tensor, name in zip(tensors, names, strict=True))
    pads = [call.args[-4] for call in module.monomoe_topk.call_args_list]
    assert (
        pads[0] is pads[2]
        and abs(pads[0].data_ptr() - pads[1].data_ptr()) >= 1500
        and not pads[1].any()
    )
    with pytest.raises(ValueError, match=f"routing_logits: .* {MOST_TOKENS + 1} "):
        main.run(*arguments(KEY, MOST_TOKENS + 1, "meta").values())


def test_an_older_flashinfer_is_refused(load, monkeypatch):
    monkeypatch.delattr(fused_moe, "mono_moe")
    with pytest.raises(ImportError, match="0.7.2"):
        load()


@pytest.mark.slow
def test_hand_over_compiles_for_hopper():
    """A kernel that dies in the compiler or spills, on the GPU only."""
    code = f"""from ahead_of_time import compile_all
from solutions.flashinfer_mono_moe.hand_over import hand_over
for kernel in compile_all(lambda *given: hand_over(*given[:5], 8), "{KEY}", "sm_90", [1, 8], "NVIDIA H200"):
    print(kernel["kernel"], kernel["stack"], kernel["reloads"] or 0)
"""
    env = os.environ | {
        "TRITON_INTERPRET": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=170
    )
    assert set(done.stdout.splitlines()) == {"hand_over_kernel 0 0"}, done.stderr[-2000:]

"""integrations/transformers with the small layer: logits against bf16 experts, and the steps that
are timed.
"""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from moebench.core import paths

pytest.importorskip(
    "transformers.integrations.finegrained_fp8", reason="transformers is not installed"
)
EXAMPLE = paths.ROOT / "integrations" / "transformers"
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the example itself is the test"),
    pytest.mark.filterwarnings(
        "ignore:`past_key_values` is deprecated:FutureWarning"
    ),  # 5.12 knows no other name
]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Its modules, a model with one MoE layer, and the name of triton_fused_v2's experts in
    transformers.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        import deepseek_v3
        import main
        import steps

        name = main.registered(
            "triton_fused_v2", "small-routed", tmp_path_factory.mktemp("package")
        )
        model = deepseek_v3.build("small-routed", 1, "cpu")
        yield SimpleNamespace(main=main, steps=steps, name=name, model=model, use=deepseek_v3.use)
        for module in (main, steps, deepseek_v3):
            del sys.modules[module.__name__]


def test_logits_are_those_of_experts_in_bf16(example):
    """The check can fail: rows of `up` before those of `gate` are another model."""
    assert example.main.errors(example.model, example.name, 3).median() < 0.04
    experts = example.model.model.layers[1].mlp.fp8
    right = experts.gate_up_proj.data
    experts.gate_up_proj.data = (
        right.view(torch.uint8).roll(experts.intermediate_dim, 1).view(right.dtype)
    )
    assert example.main.errors(example.model, example.name, 3).median() > 0.2
    experts.gate_up_proj.data = right


@torch.inference_mode()
def test_the_step_that_is_captured_is_the_step_that_decode_takes(example):
    example.use(example.model, "grouped_mm")
    growing, fixed = (
        example.steps.decode(example.model, 2, 5),
        example.steps.decode_in_place(example.model, 2, 5),
    )
    want, got = growing(), fixed()
    assert torch.equal(got.argmax(-1), want.argmax(-1)) and torch.equal(fixed(), got)


@pytest.mark.slow
def test_the_command_checks_and_times():
    done = subprocess.run(
        [sys.executable, EXAMPLE / "main.py", "--layers", "1"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 1 and {"prefill", "decode"} <= set(done.stdout.split())

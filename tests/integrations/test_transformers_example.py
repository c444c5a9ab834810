"""integrations/transformers with the small layer: logits against bf16 experts, and the steps that
are timed.
"""

import importlib
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from moebench.core import paths

pytest.importorskip(
    "transformers.integrations.finegrained_fp8", reason="transformers is not installed"
)
EXAMPLE = paths.ROOT / "integrations" / "transformers"
MODULES = ("deepseek_v3", "main", "steps")
pytestmark = [
    pytest.mark.xdist_group("transformers example"),  # one worker makes the model
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="on a GPU the example itself is the test"
    ),
    # 5.12 knows no other name
    pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning"),
]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Its modules, a model with one MoE layer, and the name of triton_fused_v2's experts in
    transformers.
    """
    folder = tmp_path_factory.mktemp("package")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        modules = {name: importlib.import_module(name) for name in MODULES}
        name = modules["main"].registered("triton_fused_v2", "small-routed", folder)
        model = modules["deepseek_v3"].build("small-routed", 1, "cpu")
        yield SimpleNamespace(name=name, model=model, **modules)
        for module in MODULES:
            del sys.modules[module]


def error(example):
    return example.main.errors(example.model, example.name, 3).median()


def test_logits_are_those_of_experts_in_bf16(example):
    assert error(example) < 0.04


@torch.inference_mode()
def test_the_step_that_is_captured_is_the_step_that_decode_takes(example):
    example.deepseek_v3.use(example.model, "grouped_mm")
    growing = example.steps.decode(example.model, 2, 5)
    in_place = example.steps.decode_in_place(example.model, 2, 5)

    output = in_place()

    assert torch.equal(output.argmax(-1), growing().argmax(-1))
    assert torch.equal(in_place(), output)


@pytest.mark.slow
def test_the_command_checks_and_times(example, monkeypatch, capsys):
    once = {
        name: replace(phase, calls=1) for name, phase in example.main.PHASES.items()
    }
    monkeypatch.setattr(example.main, "PHASES", once)

    assert example.main.main(["--layers", "1"]) == 0

    words = capsys.readouterr().out.split()
    assert words.count("PASSED") == 1
    assert "prefill" in words
    assert "decode" in words

"""Which adapters a package has, and the figures that integrations/deepseek_v4.md computes."""

import importlib
import re

import pytest
from moebench.core import paths
from moebench.operators.layers import models
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.packing import python_package

PAGE = paths.ROOT / "integrations" / "deepseek_v4.md"
MXFP4_BYTES = 17 / 32  # of a weight, with its part of a scale
FP8_BYTES = 1 + 4 / 128**2
GPUS = 8
BANDWIDTH = CEILINGS[MEASURED_ON]["bytes"] / 1e9  # GB/s
TOKENS = (1, 8, 32, 128)


def test_a_package_of_mxfp4_experts_has_its_adapters(tmp_path, monkeypatch):
    """A plugin that cannot be imported, since there is no function for tokens in bf16."""
    (folder,) = python_package.pack_packages(
        ["triton_fused_v2"], tmp_path / "pk", ["small-mxfp4"]
    )
    monkeypatch.syspath_prepend(tmp_path / "pk")

    names = {path.stem for path in folder.glob("for_*.py")}
    assert {"for_engines", "for_vllm_mxfp4", "for_sglang_mxfp4"} <= names
    assert not {"for_transformers", "for_vllm_fp8"} & names
    adapter = importlib.import_module(f"{folder.name}.for_engines")
    assert adapter.SOLUTION == "triton_fused_v2"
    commands = adapter.commands("org/model", adapter.Split(experts=2, width=4))
    assert "--ep 2 --tp 4 --add KEY && " in commands
    assert commands.endswith("--definition KEY && pip install ./moe")


def experts_gb(model):
    """Return the GB of one expert in all layers, in MXFP4 and in FP8."""
    weights = (
        3 * model["layers"] * model["hidden_size"] * model["intermediate_size"] / 1e9
    )
    return weights * MXFP4_BYTES, weights * FP8_BYTES


def numbers_of_row(name):
    """Return the numbers of a row of the page's tables."""
    (line,) = re.findall(rf"^\| {name}.*$", PAGE.read_text(), re.MULTILINE)
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


@pytest.mark.parametrize(("name", "label"), [("flash", "V4-Flash"), ("pro", "V4-Pro")])
def test_the_page_says_what_a_server_holds(name, label):
    model = models()[f"deepseek-v4-{name}"]
    expected = []
    for expert_gb in experts_gb(model):
        total = model["num_experts"] * expert_gb
        expected += [total, total / GPUS]
    assert numbers_of_row(f"{label}: ") == pytest.approx(expected, abs=0.051)


@pytest.mark.parametrize("tokens", TOKENS)
def test_the_page_says_what_a_step_reads(tokens):
    expected = []
    for name in ("flash", "pro"):
        model = models()[f"deepseek-v4-{name}"]
        experts = model["num_experts"]
        active = experts * (1 - (1 - model["top_k"] / experts) ** tokens)
        for expert_gb in experts_gb(model):
            gigabytes = active * expert_gb / GPUS
            expected += [gigabytes, 1000 * gigabytes / BANDWIDTH]
    assert numbers_of_row(rf"{tokens} \| ") == pytest.approx(expected, abs=0.0051)

"""`moebench model`: one screen on a config.json, and a layer that is added serves without any
source edited.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from moebench import cli
from moebench.core import paths
from moebench.packing import pack
from recorded import trace, write

SAMPLES = Path(__file__).parents[1] / "samples" / "model_configs.jsonl"
TINY = {
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
TINY |= {"hidden_size": 256, "moe_intermediate_size": 128, "num_hidden_layers": 4}
TINY["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@pytest.fixture
def config(tmp_path):
    """A function that writes a config.json: of a sample by its name, or of a dict."""
    known = {
        each["name"]: each["config"]
        for each in map(json.loads, SAMPLES.read_text(encoding="utf-8").splitlines())
    }

    def written(given):
        (tmp_path / "config.json").write_text(
            json.dumps(known.get(given, given) if isinstance(given, str) else given)
        )
        return str(tmp_path / "config.json")

    return written


def cells(out):
    """First cell of a line -> the others."""
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in out.splitlines()
        if line.startswith("│")
    ]
    return {first: rest for first, *rest in rows}


def test_a_layer_that_has_a_definition_is_found_with_what_was_measured(
    config, capsys, tmp_path, monkeypatch
):
    traces = [trace("triton_fused_v2", 57, 0.6, sha1=pack.pack("triton_fused_v2")["full"].hash())]
    monkeypatch.setattr(paths, "trace_file", lambda name: write(tmp_path / f"{name}.jsonl", traces))
    assert cli.main(["model", config("DeepSeek-V3"), "--ep", "8"]) == 0
    out = capsys.readouterr().out
    found = cells(out)
    assert found["definition"] == ["full, deepseek-v3-ep8-routed"]
    assert found["experts"][0].startswith("32 of 256, top-k 8") and "1.41 GB" in found["weights"][0]
    assert found["MoE layers"][0].startswith("58, 81.8 GB, which fits")
    assert found["triton_fused_v2"][0].startswith("yes 2.") and found["torch_moe"][:2] == [
        "yes",
        "-",
    ]
    assert (
        "--definition full\n" in out
        and "pack triton_fused_v2 --package " in out
        and "--add" not in out
    )


def test_a_layer_without_one_says_how_to_add_it_and_why_it_is_not_served(config, capsys):
    assert cli.main(["model", config("LongCat-Flash"), "--ep", "8"]) == 0
    out = capsys.readouterr().out
    assert (
        "top-k is given" in cells(out)["router"][0]
        and "--add KEY\n" in out
        and "--definition KEY-routed " in out
    )
    assert (
        cells(out)["sglang_triton"][0] == "-"
        and "28, 67.7 GB, which fits" in cells(out)["MoE layers"][0]
    )


@pytest.mark.parametrize(
    ("given", "args", "named"),
    [
        ("Kimi-K2", ["--ep", "7"], "--ep: got 7"),
        ("DeepSeek-V3", ["--ep", "8", "--add", "mine"], "full"),
        ("DeepSeek-V3", ["--ep", "2", "--add", "kimi-k2"], "kimi-k2"),
        ("DeepSeek-V3", ["--ep", "2", "--add", "Mine"], "'Mine'"),
        ("a scale per tensor", [], "weight_block_size"),
        ([], [], "config.json"),
    ],
)
def test_what_cannot_be_gets_one_line_and_leaves_the_table(config, capsys, given, args, named):
    before = (paths.ROOT / "definitions" / "layers.toml").read_bytes()
    assert cli.main(["model", config(given), *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line and (paths.ROOT / "definitions" / "layers.toml").read_bytes() == before


EVERY_COMMAND = """
import sys
from moebench import cli
few = ["--definition", "tiny", "--solutions", "triton_fused_v2"]
assert cli.main(["run", *few, "--workloads", "one-token", "odd-length"]) == 0
assert cli.main(["served", *few, "--tokens", "2"]) == 0
assert cli.main(["pack", "triton_fused_v2", "--package", "packages", "--definition", "tiny-routed"]) == 0
assert cli.main(["model", sys.argv[1], "--add", "tiny-2"]) == 2
"""


@pytest.mark.slow
def test_an_added_layer_works_everywhere_without_a_source_edited(tmp_path, config):
    """A user would miss: their model, until somebody edits five files. The table keeps what it
    had.
    """
    copy, given = tmp_path / "copy", config(TINY)
    for folder in ("definitions", "scripts", "solutions"):
        shutil.copytree(
            paths.ROOT / folder,
            copy / folder,
            ignore=shutil.ignore_patterns("__pycache__", "packed"),
        )
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(copy / "scripts"), str(copy)]),
        "CUDA_VISIBLE_DEVICES": "",
    }

    def python(*args):
        done = subprocess.run(
            [sys.executable, *args], cwd=copy, env=env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    python("-m", "moebench", "model", given, "--add", "tiny")
    table = (copy / "definitions" / "layers.toml").read_text(encoding="utf-8")
    before = (paths.ROOT / "definitions" / "layers.toml").read_text(encoding="utf-8")
    assert table.startswith(before.rstrip()) and table.count("[") == before.count("[") + 1
    named = "moe/moe_fp8_block_scale_renorm_topk2_e16_h256_i128"
    assert (copy / f"definitions/{named}.json").exists() and (
        copy / f"workloads/{named}.csv"
    ).exists()
    done = python("-c", EVERY_COMMAND, given)
    assert "tiny" in done.stderr and "2/2" in done.stdout
    (package,) = (copy / "packages").glob("*/__init__.py")
    assert package.parent.name.endswith("_e16_h256_i128")

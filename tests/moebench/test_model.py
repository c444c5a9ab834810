"""`moebench model`: one screen on a config.json, and a layer that is added serves without any
source edited.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib

import pytest
from model_configs import CONFIGS, GOOD, config_of
from moebench import cli
from moebench.core import paths
from moebench.models.checkpoint import read
from moebench.models.expected_bound import expected_bound
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.packing import manifest, pack
from moebench.reports import layer_facts
from recorded import trace, write

TINY = {
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "hidden_size": 256,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 4,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


OVER_BOUND = layer_facts.over_bound  # which reads records, and that takes seconds


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """Solution -> latency over the bound, in place of what the records say."""
    figures = {}
    monkeypatch.setattr(layer_facts, "over_bound", lambda key: figures)
    return figures


@pytest.fixture
def config(tmp_path):
    """A function that writes a config.json: of a sample by its name, or of what it is given."""

    def written(content):
        if isinstance(content, str) and content in CONFIGS:
            content = config_of(content)
        (tmp_path / "config.json").write_text(json.dumps(content))
        return str(tmp_path / "config.json")

    return written


def rows(out):
    """Return a row's name -> its text, and the commands behind the rows."""
    texts = {}
    commands = []
    name = ""
    for line in out.splitlines():
        if line.startswith("moebench "):
            commands.append(line)
        elif line[:22].strip():
            name = line[:22].strip()
            texts[name] = line[22:].strip()
        else:
            texts[name] += f" {line[22:].strip()}"
    return texts, commands


@pytest.fixture
def shown(config, capsys):
    """A function of a config and options that returns the rows and the commands of the screen."""

    def run(content, *options):
        assert cli.main(["model", config(content), *options]) == 0
        return rows(capsys.readouterr().out)

    return run


def test_a_layer_that_has_a_definition_is_found_with_what_was_measured(
    shown, tmp_path, monkeypatch
):
    sha1 = pack.pack("triton_fused_v2")["full"].hash()
    traces = [trace("triton_fused_v2", 57, 0.6, sha1=sha1)]
    monkeypatch.setattr(
        paths, "trace_file", lambda name: write(tmp_path / f"{name}.jsonl", traces)
    )
    monkeypatch.setattr(layer_facts, "over_bound", OVER_BOUND)

    texts, commands = shown("DeepSeek-V3", "--ep", "8")
    assert texts["definition"] == "full, deepseek-v3-ep8-routed"
    assert texts["experts"].startswith("32 of 256, top-k 8")
    assert texts["router"].endswith("times 2.5")
    assert "1.41 GB" in texts["weights"]
    assert texts["MoE layers"].startswith("58, 81.8 GB, which fits")
    assert texts["served, with router"].startswith("triton_fused_v2 2.")
    assert commands == [
        "moebench run --definition full",
        "moebench pack triton_fused_v2 --package moe --definition deepseek-v3-ep8-routed && "
        "pip install ./moe",
    ]


def with_shared_experts(name):
    return config_of(name) | {"n_shared_experts": 1}


@pytest.mark.parametrize(
    ("model", "args", "keys"),
    [
        (
            "DeepSeek-V3",
            ["--ep", "8"],
            "deepseek-v3-ep8-shared, deepseek-v3-ep8-shared-routed",
        ),
        (
            "DeepSeek-V3",
            ["--tp", "8"],
            "deepseek-v3-tp8-shared, deepseek-v3-tp8-shared-routed",
        ),
        ("Kimi-K2", ["--ep", "8"], "(--shared)"),
    ],
)
def test_which_definitions_include_the_shared_experts_is_said(shown, model, args, keys):
    texts, _ = shown(with_shared_experts(model), *args)
    assert texts["shared experts"].startswith("2048 wide")
    assert texts["shared experts"].endswith(keys)


def test_a_layer_with_its_shared_experts_is_served_and_can_be_added(shown):
    texts, commands = shown(with_shared_experts("Kimi-K2"), "--ep", "8", "--shared")
    assert texts["experts"].startswith("48 of 384, top-k 8")
    assert texts["definition"] == "none yet"
    for form in ("served, with router", "served, top-k given"):
        assert "hopper_fused" in texts[form]
    assert "num_shared_experts" in texts["not served by"]
    assert commands[0].endswith("/config.json --ep 8 --shared --add kimi-k2-ep8-shared")


def test_shared_experts_that_are_not_there_are_refused(config, refusal):
    status, line = refusal("model", config("Kimi-K2"), "--shared")
    assert status == 2
    assert "--shared" in line


def test_a_layer_without_one_says_how_to_add_it_and_why_it_is_not_served(
    shown, tmp_path
):
    named = config_of("LongCat-Flash") | {"_name_or_path": "org/LongCat Flash"}
    texts, commands = shown(named, "--ep", "8")

    assert "top-k is given" in texts["router"]
    assert "28, 67.7 GB, which fits" in texts["MoE layers"]
    assert "zero_expert_num" in texts["note"]
    assert "sglang_triton" in texts["not served by"]
    path = tmp_path / "config.json"
    assert commands[0] == f"moebench model {path} --ep 8 --add longcat-flash-ep8"
    assert "--definition longcat-flash-ep8-routed && pip" in commands[2]


def test_experts_in_mxfp4_are_served_by_what_takes_them(shown, measured):
    measured["triton_fused_v2"] = 1.5
    texts, commands = shown("DeepSeek-V4-Flash", "--ep", "8")
    assert texts["definition"] == "deepseek-v4-flash-ep8-mxfp4"
    assert texts["weights"].startswith("MXFP4")
    assert "0.43 GB" in texts["weights"]
    assert "18.4 GB" in texts["MoE layers"]
    assert texts["served, top-k given"].startswith("triton_fused_v2 1.50")
    assert "deepgemm" in texts["not served by"]
    assert commands == [
        "moebench run --definition deepseek-v4-flash-ep8-mxfp4",
        "moebench pack triton_fused_v2 --package moe --definition deepseek-v4-flash-ep8-mxfp4 && "
        "pip install ./moe",
    ]


def test_a_layer_in_mxfp4_that_has_no_definition_is_called_so(shown):
    texts, commands = shown("DeepSeek-V4-Flash", "--ep", "2", "--tp", "4")
    assert texts["hidden, intermediate"].startswith("4096, 512,")
    assert commands[0].endswith(" --ep 2 --tp 4 --add deepseek-v4-flash-ep2-tp4-mxfp4")
    assert commands[1] == "moebench run --definition deepseek-v4-flash-ep2-tp4-mxfp4"


def test_groups_of_experts_are_nothing_to_a_solution_that_is_given_top_k(shown):
    """Ling's router has eight groups, of which four stay open."""
    texts, _ = shown("Ling-3.0-flash in MXFP4", "--ep", "8", "--fp8-activations")
    assert "in 8 groups" in texts["router"]
    assert "hopper_fused" in texts["served, top-k given"]


@pytest.mark.parametrize("name", GOOD)
def test_it_is_one_screen(config, capsys, measured, name):
    """24 lines of 100 columns, the prompt's among them; what can be typed is not broken."""
    measured |= dict.fromkeys(manifest.solution_names(), 1.23)
    assert cli.main(["model", config(name), "--ep", str(CONFIGS[name]["ep"])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 23
    assert all(len(line) <= 100 for line in lines if not line.startswith("moebench "))


@pytest.mark.parametrize(
    ("content", "arguments", "named"),
    [
        ("Kimi-K2", "--ep 7", "--ep: got 7"),
        ("DeepSeek-V3", "--ep 8 --add mine", "full"),
        ("DeepSeek-V3", "--ep 2 --add kimi-k2-ep8", "kimi-k2-ep8"),
        ("DeepSeek-V3", "--ep 2 --add Mine", "'Mine'"),
        ("a scale per tensor", "", "weight_block_size"),
        ("experts in 16 bits by an expression", "", "modules_to_not_convert"),
        ([], "", "config.json"),
    ],
)
def test_what_cannot_be_gets_one_line_and_leaves_the_table(
    config, refusal, content, arguments, named
):
    table = paths.ROOT / "definitions" / "layers.toml"
    before = table.read_bytes()
    status, line = refusal("model", config(content), *arguments.split())
    assert status == 2
    assert named in line
    assert table.read_bytes() == before


def test_a_file_that_is_not_there_is_named(tmp_path, refusal):
    status, line = refusal("model", tmp_path / "nowhere")
    assert status == 2
    assert "nowhere" in line


def test_the_bound_at_one_token_is_that_of_the_experts_that_a_rank_has_on_average():
    """Eight experts of a token on eight ranks: one on each, and 44 MB of weights a time."""
    sizes = read(config_of("DeepSeek-V3")).on(8)
    single = expected_bound(1, sizes)
    assert single.active == pytest.approx(1.0)
    seconds = 44.07e6 / CEILINGS[MEASURED_ON]["bytes"]
    assert single.ms == pytest.approx(1e3 * seconds, rel=0.01)

    many = expected_bound(4096, sizes)
    assert many.active == pytest.approx(32, abs=0.1)


def test_the_bound_of_a_rank_with_all_experts_counts_each_choice():
    sizes = read(config_of("Qwen3-235B")).on(1)
    assert expected_bound(1, sizes).active == 8
    assert 100 < expected_bound(64, sizes).active < 128


@pytest.fixture
def clone(tmp_path):
    """A copy of the repository's definitions and sources, and a function that runs Python in it."""
    copy = tmp_path / "copy"
    ignored = shutil.ignore_patterns("__pycache__", "packed")
    for folder in ("definitions", "scripts", "solutions"):
        shutil.copytree(paths.ROOT / folder, copy / folder, ignore=ignored)
    shutil.copy(paths.ROOT / "pyproject.toml", copy)  # by which a clone is known
    search = os.pathsep.join([str(copy / "scripts"), str(copy)])
    env = os.environ | {"PYTHONPATH": search, "CUDA_VISIBLE_DEVICES": ""}

    def python(*args):
        command = [sys.executable, *args]
        return subprocess.run(
            command, cwd=copy, env=env, capture_output=True, text=True, timeout=300
        )

    return copy, python


def files(folder):
    """Return every file below a folder with its content."""
    contents = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            contents[path] = path.read_bytes()
    return contents


EVERY_COMMAND = """
import sys
from moebench import cli
few = ["--definition", "tiny", "--solutions", "triton_fused_v2"]
assert cli.main(["run", *few, "--workloads", "one-token", "odd-length"]) == 0
assert cli.main(["served", *few, "--tokens", "2"]) == 0
package = ["--package", "packages", "--definition", "tiny-routed"]
assert cli.main(["pack", "triton_fused_v2", *package]) == 0
assert cli.main(["model", sys.argv[1], "--add", "tiny-2"]) == 2
"""
NAME = "moe/moe_fp8_block_scale_renorm_topk2_e16_h256_i256"


@pytest.mark.slow
def test_an_added_layer_works_everywhere_without_a_source_edited(clone, config):
    """The table keeps what it had."""
    copy, python = clone
    path = config(TINY)
    added = python("-m", "moebench", "model", path, "--add", "tiny")
    assert added.returncode == 0, added.stderr
    assert "moebench run --definition tiny\n" in added.stdout

    table = paths.ROOT / "definitions" / "layers.toml"
    before = table.read_text(encoding="utf-8").rstrip()
    table = (copy / "definitions" / "layers.toml").read_text(encoding="utf-8")
    assert table.startswith(before)
    assert table.removeprefix(before).count("[") == 1
    assert (copy / f"workloads/{NAME}.csv").exists()

    done = python("-c", EVERY_COMMAND, path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tiny" in done.stderr
    assert "2/2" in done.stdout
    (package,) = (copy / "packages").glob("*/__init__.py")
    assert package.parent.name.endswith("_e16_h256_i256")


TINY_MXFP4 = TINY | {
    "quantization_config": {"quant_method": "fp8", "expert_dtype": "fp4"}
}


@pytest.mark.slow
def test_other_ranks_and_experts_in_mxfp4_are_the_same_model(clone, config):
    copy, python = clone
    for content, key, split in (
        (TINY_MXFP4, "tiny-mxfp4", ["--ep", "1"]),
        (TINY, "tiny", ["--ep", "1"]),
        (TINY, "tiny-ep2", ["--ep", "2"]),
        (TINY_MXFP4, "tiny-tp2-mxfp4", ["--tp", "2"]),
    ):
        done = python("-m", "moebench", "model", config(content), *split, "--add", key)
        assert done.returncode == 0, done.stderr

    table = copy / "definitions" / "layers.toml"
    models = tomllib.loads(table.read_text(encoding="utf-8"))
    assert models["tiny"]["name"] == "tiny"
    assert models["tiny"]["ranks"] == {"tiny": 1, "tiny-ep2": 2}
    assert models["tiny"]["mxfp4"] == {"tiny-mxfp4": 1, "tiny-tp2-mxfp4": {"tp": 2}}
    assert not {"tiny-ep2", "tiny-tp2-mxfp4"} & models.keys()
    sliced = "moe_mxfp4_fp8_block_scale_routed_topk2_e16_h256_i128.json"
    assert (copy / "definitions" / "moe" / sliced).exists()

    few = ["--solutions", "triton_fused_v2", "--workloads", "one-token"]
    done = python("-m", "moebench", "run", "--definition", "tiny-mxfp4", *few)
    assert done.returncode == 0, done.stdout + done.stderr


INTERRUPTED = """
import sys
from moebench import cli
from moebench.operators import workloads
written = workloads.write_atomically
count = 0
def interrupted(path, content):
    global count
    count += 1
    written(path, content)
    if count == int(sys.argv[2]):
        raise KeyboardInterrupt
workloads.write_atomically = interrupted
sys.exit(cli.main(["model", sys.argv[1], "--add", "tiny"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 8, 11])
def test_an_interrupted_addition_leaves_nothing(clone, config, after):
    """Among tensors, after the workloads, in the second form: the user's own file stays as well."""
    copy, python = clone
    users_file = copy / "workloads" / f"{NAME}.jsonl"
    users_file.parent.mkdir(parents=True)
    users_file.write_text("", encoding="utf-8")
    before = files(copy)

    done = python("-c", INTERRUPTED, config(TINY), str(after))
    assert done.returncode != 0
    assert files(copy) == before

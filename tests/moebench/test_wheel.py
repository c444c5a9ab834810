"""What a wheel installs works outside a clone, and what needs one says so."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial

import pytest
from moebench.core import paths

pytest.importorskip("setuptools")
# one worker builds the wheel
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]

# Not in the copy that the wheel is built from: what no wheel carries, and what is large.
LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "blob", "build", "packed", "records", "traces"
)
CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "norm_topk_prob": True,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return a folder with what a wheel of this repository installs."""
    clone = tmp_path_factory.mktemp("copy") / "clone"
    shutil.copytree(paths.ROOT, clone, ignore=LEFT_OUT)

    folder = tmp_path_factory.mktemp("site-packages")
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", folder]
    subprocess.run(command, cwd=clone, check=True, capture_output=True)
    return folder


@pytest.fixture
def python(installed, tmp_path):
    """Return a function that runs Python with the installed package in an empty folder.

    It returns the CompletedProcess.
    """

    def run(*arguments):
        env = os.environ | {"PYTHONPATH": str(installed), "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-P", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True
        )

    return run


@pytest.fixture
def moebench(python):
    """Return a function that runs the installed command, as `python`."""
    return partial(python, "-m", "moebench")


def write_times(folder):
    """Return path -> when it was written, of each file below the folder but Python's own cache."""
    times = {}
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            times[path] = path.stat().st_mtime_ns
    return times


def test_a_package_is_packed(moebench, tmp_path):
    options = ["--package", "moe", "--definition", "qwen3-30b-routed"]
    done = moebench("pack", "hopper_fused", *options)
    assert done.returncode == 0, done.stderr
    (package,) = (tmp_path / "moe").glob("*/__init__.py")
    assert "run" in package.read_text()


def test_a_model_and_the_definitions_are_shown(moebench, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = moebench("model", "config.json")
    assert done.returncode == 0, done.stderr
    assert "qwen3-30b-routed" in done.stdout

    done = moebench("data", "small")
    assert done.returncode == 0, done.stderr
    assert "one-token" in done.stdout


def test_a_new_solution_is_judged_and_only_the_users_folder_is_written(
    moebench, installed, tmp_path
):
    before = write_times(installed)
    done = moebench("new", "mine", "--author", "me")
    assert done.returncode == 0, done.stderr
    done = moebench("run", "--solutions", "mine", "--workloads", "one-token")
    assert done.returncode == 0, done.stderr
    done = moebench("pack", "mine")
    assert done.returncode == 0, done.stderr

    written = tmp_path / "moebench-files" / "solutions"
    packed_files = list(written.glob("packed/*/mine.json"))
    assert len(packed_files) == 2  # of a layer for GPUs and of the small one
    assert (written / "mine" / "main.py").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["moebench-files"]
    assert write_times(installed) == before

    packed_folder = str(written / "packed")
    done = moebench(
        "run", packed_folder, "--definition", "small", "--workloads", "one-token"
    )
    assert done.returncode == 0, done.stderr


def test_a_data_set_is_judged_by_its_own_files(moebench, tmp_path):
    data_set = tmp_path / "set"
    for folder in ("definitions", "workloads"):
        shutil.copytree(paths.ROOT / folder, data_set / folder)
    assert moebench("data", "small", "--write").returncode == 0
    # the workloads' tensors, which the repository does not carry
    shutil.copytree(tmp_path / "moebench-files" / "blob", data_set / "blob")

    options = ["--definition", "small", "--workloads", "1"]
    done = moebench("run", "--solutions", "torch_moe", "--dataset", "set", *options)
    assert done.returncode == 0, done.stderr


NEED_A_CLONE = [
    ["docs"],
    ["model", "config.json", "--add", "mine"],
    ["submit", "torch_moe", "--into", "x"],
]
CALL_EACH = f"""
from moebench import cli
for command in {NEED_A_CLONE}:
    print(cli.main(command))
"""


def test_what_needs_a_clone_says_so(python, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = python("-c", CALL_EACH)
    assert done.stdout.split() == ["1", "1", "1"], done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert all("clone" in line for line in lines)

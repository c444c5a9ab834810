"""integrations/vllm without vLLM: the two checkpoints hold the same numbers, and of a server
nothing is left.
"""

import importlib
import sys
from types import ModuleType

import psutil
import pytest
import torch
from moebench.core import paths
from safetensors.torch import load_file

pytest.importorskip("transformers")
FAKE_VLLM = """
import os, subprocess, sys
subprocess.Popen(["sleep", "600"])
print("FP8 experts by moe.x: solution x, definition y", flush=True)
port = sys.argv[sys.argv.index("--port") + 1]
os.execv(sys.executable, [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", port])
"""


@pytest.fixture
def example(monkeypatch):
    """A function of a name that returns that module."""
    monkeypatch.syspath_prepend(paths.ROOT / "integrations" / "vllm")
    return importlib.import_module


def test_checkpoints_hold_the_same_numbers(example, tmp_path):
    """A comparison of two models."""
    weights = {}
    for experts in ("fp8", "bf16"):
        example("checkpoint").write(tmp_path / experts, "tiny", layers=1, experts=experts)
        weights[experts] = load_file(tmp_path / experts / "0.safetensors")

    for name, expected in weights["bf16"].items():
        weight = weights["fp8"][name].float()
        if ".experts." in name:
            scale = weights["fp8"][f"{name}_scale_inv"]
            weight *= torch.kron(scale, torch.ones(128, 128))
        assert expected.any()
        assert torch.equal(weight, expected.float())


@pytest.fixture
def tensor_parallel(example, monkeypatch):
    """tensor_parallel.py, without vLLM's client."""
    for name in ("vllm", "vllm.benchmarks", "vllm.utils", "vllm.utils.argparse_utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.benchmarks"].serve = None
    sys.modules["vllm.utils.argparse_utils"].FlexibleArgumentParser = None
    return example("tensor_parallel")


def test_a_layer_takes_the_bytes_that_are_reckoned(example, tensor_parallel, tmp_path):
    """A model that is too large for its GPUs."""
    example("checkpoint").write(tmp_path, "tiny", layers=1)
    written = (tmp_path / "0.safetensors").stat().st_size
    reckoned = tensor_parallel.bytes_of_layer(example("checkpoint").MODELS["tiny"])
    assert reckoned == pytest.approx(written, rel=0.02)


def test_as_many_layers_are_written_as_fit(example, tensor_parallel):
    """GPUs that are too small, a disk that is, and a model with fewer layers."""
    sizes = example("checkpoint").MODELS["qwen3-235b"]
    layers_that_fit = tensor_parallel.layers_that_fit
    assert layers_that_fit(sizes, 2, 85_000_000_000, 10**12) == 47
    assert layers_that_fit(sizes, 4, 85_000_000_000, 10**12) == 94
    assert layers_that_fit(sizes, 2, 85_000_000_000, 34_000_000_000) == 10
    assert layers_that_fit(sizes, 2, 8_000_000_000, 10**12) == 0


def test_the_sum_over_ranks_has_to_be_in_the_log(example):
    """A server that leaves the sum to vLLM, measured as one that does not."""
    proof = example("server").proof
    line = "experts by moe.x: solution hopper_fused, definition y"
    with pytest.raises(RuntimeError, match="^log: got "):
        proof(f"FP8 {line}", "solution_sum")
    record = proof(f"FP8 {line}\nSum over ranks by moe.x: solution x, definition y", "solution_sum")
    assert record["kernels"] == "moe.x: solution x, definition y"


@pytest.fixture
def server(example, tmp_path, monkeypatch):
    """server.py with a vLLM that only says that it uses a package; `processes` has those that were
    started.
    """
    main = tmp_path / "vllm" / "entrypoints" / "cli" / "main.py"
    main.parent.mkdir(parents=True)
    main.write_text(FAKE_VLLM)
    (tmp_path / "health").touch()
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    server = example("server")
    server.processes = []
    wait = server.wait_until_healthy

    def note_processes(*arguments):
        wait(*arguments)
        server.processes += psutil.Process().children(recursive=True)

    monkeypatch.setattr(server, "wait_until_healthy", note_processes)
    monkeypatch.setattr(server, "about", lambda config: {})
    return server


def assert_nothing_is_left(processes):
    psutil.wait_procs(processes, timeout=5)
    assert len(processes) == 2
    for process in processes:
        assert not process.is_running()


def test_a_server_leaves_nothing_where_its_user_fails(server, tmp_path):
    """A GPU that is not free."""
    with (
        pytest.raises(KeyError, match="moe.x"),
        server.served(tmp_path, "solution", tmp_path / "log", "") as (_, record),
    ):
        raise KeyError(record["kernels"])
    assert_nothing_is_left(server.processes)


def test_kernels_that_were_not_asked_for_are_refused(server, tmp_path):
    with pytest.raises(RuntimeError), server.served(tmp_path, "triton", tmp_path / "log", ""):
        pytest.fail("it is served")
    assert_nothing_is_left(server.processes)

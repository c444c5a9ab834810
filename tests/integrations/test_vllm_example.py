"""integrations/vllm without vLLM: the two checkpoints hold the same numbers, and of a server
nothing is left.
"""

import importlib

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

"""integrations/vllm without vLLM: the two checkpoints hold the same numbers, and of a server
nothing is left.
"""

import argparse
import importlib
import json

import psutil
import pytest
import torch
from moebench.core import paths
from safetensors.torch import load_file
from stand_ins import stand_in

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
        example("checkpoint").write(
            tmp_path / experts, "tiny", layers=1, experts=experts
        )
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
    stand_in(monkeypatch, "vllm.utils.argparse_utils", FlexibleArgumentParser=None)
    stand_in(monkeypatch, "vllm.benchmarks", serve=None)
    return example("tensor_parallel")


def test_a_layer_takes_the_bytes_that_are_reckoned(example, tensor_parallel, tmp_path):
    """A model that is too large for its GPUs."""
    example("checkpoint").write(tmp_path, "tiny", layers=1)
    written = (tmp_path / "0.safetensors").stat().st_size
    reckoned = tensor_parallel.bytes_of_layer(example("checkpoint").MODELS["tiny"])
    assert reckoned == pytest.approx(written, rel=0.02)


FITS = {  # GPUs, bytes of each, bytes of the disk, servers -> layers of 94
    (2, 85_000_000_000, 10**12, 1): 47,
    (4, 85_000_000_000, 10**12, 1): 94,
    (2, 85_000_000_000, 34_000_000_000, 1): 10,
    (2, 8_000_000_000, 10**12, 1): 0,
    (4, 85_520_000_000, 10**12, 3): 24,
}


@pytest.mark.parametrize("machine", FITS)
def test_as_many_layers_are_written_as_fit(example, tensor_parallel, machine):
    """GPUs that are too small or shared by servers, a disk that is, a model with fewer layers."""
    sizes = example("checkpoint").MODELS["qwen3-235b"]
    assert tensor_parallel.layers_that_fit(sizes, *machine) == FITS[machine]


def test_a_checkpoint_of_few_layers_is_a_model_of_many(example, monkeypatch, tmp_path):
    """A layer without weights, or one that gets those of two."""
    loader = type("Loader", (), {"get_all_weights": None})
    path = "vllm.model_executor.model_loader.default_loader"
    stand_in(monkeypatch, path, DefaultModelLoader=loader)

    write = example("checkpoint").write
    write(tmp_path / "all", "tiny", layers=5)
    write(tmp_path / "few", "tiny", layers=5, written=2)
    assert not (tmp_path / "few" / "2.safetensors").exists()

    weights = load_files(tmp_path / "few")
    repeated = list(example("repeat_layers").repeat_layers(weights.items(), 2, 5))
    by_name = dict(repeated)
    assert len(repeated) == len(by_name)
    assert by_name.keys() == load_files(tmp_path / "all").keys()

    gate = "model.layers.{}.mlp.gate.weight"
    assert by_name[gate.format(4)] is weights[gate.format(0)]
    assert by_name[gate.format(3)] is weights[gate.format(1)]


def load_files(folder):
    """Return all weights of a checkpoint."""
    weights = {}
    for file in folder.glob("*.safetensors"):
        weights |= load_file(file)
    return weights


def test_the_sum_over_ranks_has_to_be_in_the_log(example):
    """A server that leaves the sum to vLLM, measured as one that does not."""
    proof = example("server").proof
    experts = "FP8 experts by moe.x: solution hopper_fused, definition y"
    with pytest.raises(RuntimeError, match="^log: got "):
        proof(experts, "solution_sum")
    kernels = "moe.x: solution x, definition y"
    record = proof(f"{experts}\nSum over ranks by {kernels}", "solution_sum")
    assert record["kernels"] == kernels


@pytest.fixture
def server(example, tmp_path, monkeypatch):
    """server.py with a vLLM that only says that it uses a package; what it starts is noted in
    `processes`.
    """
    main = tmp_path / "vllm" / "entrypoints" / "cli" / "main.py"
    main.parent.mkdir(parents=True)
    main.write_text(FAKE_VLLM)
    (tmp_path / "health").touch()
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    server = example("server")
    server.processes = []
    others = psutil.Process().children(recursive=True)  # of tests before
    wait = server.wait_until_healthy

    def note_processes(*arguments):
        wait(*arguments)
        for process in psutil.Process().children(recursive=True):
            if process not in others:
                server.processes.append(process)

    monkeypatch.setattr(server, "wait_until_healthy", note_processes)
    monkeypatch.setattr(server, "about", lambda config: {})
    return server


def assert_nothing_is_left(processes):
    assert len(processes) >= 2
    _, running = psutil.wait_procs(processes, timeout=5)
    assert running == []


def test_a_server_leaves_nothing_where_its_user_fails(server, tmp_path):
    """A GPU that is not free."""
    served = server.served(tmp_path, "solution", tmp_path / "log", "")
    with pytest.raises(KeyError, match="moe.x"), served as (_, record):
        raise KeyError(record["kernels"])
    assert_nothing_is_left(server.processes)


def test_kernels_that_were_not_asked_for_are_refused(server, tmp_path):
    with (
        pytest.raises(RuntimeError),
        server.served(tmp_path, "triton", tmp_path / "log", ""),
    ):
        pytest.fail("it is served")
    assert_nothing_is_left(server.processes)


def test_servers_are_measured_without_one_that_does_not_come_up(
    server, tensor_parallel, tmp_path, monkeypatch
):
    """The results of those that are up, or their processes, where another one fails."""
    sizes = {"num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    args = argparse.Namespace(
        model=tmp_path,
        backends=[
            "triton",
            "solution",
            "triton",
        ],  # which a package's line in the log refutes
        logs=tmp_path,
        ranks=2,
        serve="",
        repeats=2,
    )
    measured = []

    def note(args, url, about, place):
        measured.append((about["backend"], place["repeat"]))

    monkeypatch.setattr(tensor_parallel.measure, "measure_points", note)
    assert not tensor_parallel.measure_together(args)
    assert measured == [("solution", 0), ("solution", 1)]
    assert_nothing_is_left(server.processes)

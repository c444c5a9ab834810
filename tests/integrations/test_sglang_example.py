"""integrations/sglang's servers without SGLang: what is loaded, which log is believed, and that
nothing is left of a server.
"""

import argparse
import importlib
from types import SimpleNamespace

import psutil
import pytest
from moebench.core import paths
from stand_ins import stand_in

PACKAGE = "FP8 experts by moe.x: solution x, definition y"
FAKE_SERVER = f"""
import os, subprocess, sys
subprocess.Popen(["sleep", "600"])
if os.environ["SGLANG_PLUGINS"] != "none":
    print("{PACKAGE}", flush=True)
port = sys.argv[sys.argv.index("--port") + 1]
os.chdir(os.path.dirname(__file__))  # which has a file "health"
os.execv(sys.executable, [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", port])
"""


@pytest.fixture
def example(monkeypatch):
    """A function of a name that returns that module."""
    monkeypatch.syspath_prepend(paths.ROOT / "integrations" / "sglang")
    return importlib.import_module


@pytest.fixture
def two_servers(example, monkeypatch):
    """two_servers.py, without SGLang's client."""
    stand_in(monkeypatch, "sglang.benchmark", serving=None)
    return example("two_servers")


@pytest.fixture
def args(two_servers, tmp_path, monkeypatch):
    """Arguments for servers that answer, leave a process behind, and compute nothing."""
    (tmp_path / "serve_repeated.py").write_text(FAKE_SERVER)
    (tmp_path / "health").touch()
    monkeypatch.setattr(two_servers, "HERE", tmp_path)
    backends = ["triton", "solution"]
    return argparse.Namespace(
        model=tmp_path / "model", ranks=4, backends=backends, serve="", logs=tmp_path
    )


def test_each_layer_of_the_checkpoint_is_loaded_into_several(example, monkeypatch):
    class Loader:
        def _get_all_weights(self, model_config, model):
            names = ["model.layers.0.a", "model.layers.1.a", "model.embed_tokens"]
            return zip(names, model, strict=True)

    stand_in(monkeypatch, "sglang.srt.model_loader.loader", DefaultModelLoader=Loader)
    example("serve_repeated")

    config = SimpleNamespace(written_layers=2, num_hidden_layers=5)
    loaded = Loader()._get_all_weights(SimpleNamespace(hf_config=config), [0, 1, 2])
    layers = {f"model.layers.{layer}.a": layer % 2 for layer in range(5)}
    assert dict(loaded) == {**layers, "model.embed_tokens": 2}


@pytest.mark.parametrize("backend", ["triton", "solution"])
def test_nothing_of_a_server_is_left(two_servers, args, backend):
    """A plugin that is loaded for SGLang's own kernels."""
    server = two_servers.start(args, backend)
    try:
        two_servers.wait_until_healthy(server)
        expected = (
            "moe.x: solution x, definition y" if backend == "solution" else "TRITON"
        )
        assert two_servers.kernels(server) == expected
        children = psutil.Process(server.process.pid).children(recursive=True)
    finally:
        two_servers.end(server)

    assert children
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_a_log_without_the_packages_line_is_refused(two_servers, tmp_path):
    log = tmp_path / "log"
    log.write_text("ready")
    server = two_servers.Server(None, "", "solution", "", log)
    with pytest.raises(RuntimeError, match="log of solution: got None"):
        two_servers.kernels(server)


def test_the_end_of_a_servers_log_is_shown(two_servers, args, tmp_path):
    (tmp_path / "serve_repeated.py").write_text("raise SystemExit('no such model')")
    server = two_servers.start(args, "triton")
    with pytest.raises(RuntimeError, match="no such model"):
        two_servers.wait_until_healthy(server)

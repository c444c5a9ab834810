"""integrations/vllm without vLLM: the two checkpoints hold the same numbers, and of a server
nothing is left.
"""

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


def test_checkpoints_hold_the_same_numbers_and_servers_leave_nothing(tmp_path, monkeypatch):
    """A comparison of two models, kernels that are not those asked for, a GPU
    that is not free.
    """
    monkeypatch.syspath_prepend(paths.ROOT / "integrations" / "vllm")
    checkpoint, server = map(__import__, ("checkpoint", "server"))
    for experts in ("fp8", "bf16"):
        checkpoint.write(tmp_path / experts, "tiny", layers=1, experts=experts)
    fp8, bf16 = (load_file(tmp_path / experts / "0.safetensors") for experts in ("fp8", "bf16"))
    for name, weight in bf16.items():
        scale = (
            torch.kron(fp8[f"{name}_scale_inv"], torch.ones(128, 128)) if ".experts." in name else 1
        )
        assert weight.float().equal(fp8[name].float() * scale) and weight.any()
    (main := tmp_path / "vllm/entrypoints/cli/main.py").parent.mkdir(parents=True)
    main.write_text(FAKE_VLLM)
    (tmp_path / "health").touch()
    monkeypatch.chdir(tmp_path)
    processes, wait, of = [], server.wait_until_healthy, psutil.Process().children
    monkeypatch.setattr(
        server, "wait_until_healthy", lambda *at: (wait(*at), processes.extend(of(recursive=True)))
    )
    monkeypatch.setattr(server, "about", lambda config: {})
    for backend, error in (("solution", KeyError), ("triton", RuntimeError)):
        with (
            pytest.raises(error),
            server.served(tmp_path / "fp8", backend, tmp_path / "log", "") as (_, record),
        ):
            raise KeyError(record["kernels"])
    psutil.wait_procs(processes, timeout=5)
    assert len(processes) == 4 and not any(each.is_running() for each in processes)

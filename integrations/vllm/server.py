"""A running `vllm serve`, whose log proves which kernels compute the experts, and of which no
process is left over.
"""

import argparse
import ctypes
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from urllib.request import urlopen

SOLUTION = "solution"  # an installed package
# Backend -> options of `vllm serve`, and what its log has to have, with a name of the kernels.
BACKENDS = {
    SOLUTION: ("", r"FP8 experts by (\S+: solution \w+, definition \w+)"),
    "triton": ("--moe-backend triton", r"Using (TRITON) Fp8 MoE backend"),
    "deep_gemm": ("--moe-backend deep_gemm", r"Using (DEEPGEMM) Fp8 MoE backend"),
    "bf16": ("", r"Using (\w+) Unquantized MoE backend|$"),  # a checkpoint with experts in bf16
}
OPTIONS = "--max-model-len 4096 --max-num-seqs 128 --no-enable-prefix-caching"
SECONDS = 900  # that a server may take to come up, compiling kernels
SIZES = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "moe_intermediate_size",
    "num_experts_per_tok",
)


def parser_of(about: str, backends: list[str]) -> argparse.ArgumentParser:
    """A parser with the options of both programs; it also lets SIGTERM end them as an exception
    does.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=backends)
    parser.add_argument(
        "--serve", default="", metavar="OPTIONS", help="of vllm serve, besides ours"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results.jsonl"), help="lines of JSON are added to it"
    )
    parser.add_argument("--logs", type=Path, default=Path("."), help="folder for the servers' logs")
    return parser


@contextmanager
def served(model: Path, backend: str, log: Path, options: str) -> Iterator[tuple[str, dict]]:
    """Serve a checkpoint by one of BACKENDS while the block runs.

    Args:
        log: file for what the server prints.
        options: more of `vllm serve`; they win over OPTIONS.

    Yields:
        Its URL, and a record's start: model, machine, versions, options, and the kernels that the
            log proves.

    Raises:
        RuntimeError: the server did not come up, or its log does not have the backend's line.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    config = json.loads((model / "config.json").read_text())
    share = "--worker-extension-cls one_rank.OneRank" if "expert_ranks" in config else ""
    chosen = " ".join(f"{OPTIONS} {BACKENDS[backend][0]} {share} {options}".split())
    environment = os.environ | {
        "PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    }
    environment |= {} if backend == SOLUTION else {"VLLM_PLUGINS": ""}
    program = [
        sys.executable,
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        model,
        "--served-model-name",
        "moe",
    ]
    program += ["--port", url.rpartition(":")[2], *shlex.split(chosen)]
    ours = {
        "process_group": 0,
        "preexec_fn": lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),
    }  # 1: when we die
    with log.open("w") as file:
        server = subprocess.Popen(program, stdout=file, stderr=file, env=environment, **ours)
    try:
        wait_until_healthy(server, url, log)
        yield (
            url,
            about(config)
            | {"backend": backend, "options": chosen}
            | proof(log.read_text(), backend),
        )
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # its workers, where it left any
        server.wait()


def wait_until_healthy(server: subprocess.Popen, url: str, log: Path) -> None:
    until = time.monotonic() + SECONDS
    while server.poll() is None and time.monotonic() < until:
        with suppress(OSError):  # what urlopen raises before the server listens
            urlopen(f"{url}/health", timeout=5).close()
            return
        time.sleep(0.5)
    raise RuntimeError(
        f"vllm serve: got no healthy server; the end of {log}:\n{log.read_text()[-3000:]}"
    )


def proof(log: str, backend: str) -> dict:
    """Which kernels a server's log says compute the experts. Raises RuntimeError where they are not
    the backend's.
    """
    wanted = BACKENDS[backend][1]
    found, solution = re.search(wanted, log), re.search(BACKENDS[SOLUTION][1], log)
    if not found or (solution and backend != SOLUTION):
        raise RuntimeError(
            f"log: got {solution and solution[0]!r}, want {wanted!r} for backend {backend} and no other"
        )
    table = re.search(r"Using configuration from (\S+\.json) for MoE layer", log)
    graphs = "Graph capturing finished" in log
    return {
        "kernels": found[1],
        "tuned_table": table and Path(table[1]).name,
        "cuda_graphs": graphs,
    }


def about(config: dict) -> dict:
    """What a record says of model, machine and software; gpu is None without one."""
    failed, gpu = subprocess.getstatusoutput(
        "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader"
    )
    versions = {
        each.dist.name: each.dist.version
        for each in metadata.entry_points(group="vllm.general_plugins")
    }
    versions |= {name: metadata.version(name) for name in ("vllm", "torch", "triton")}
    experts = next(
        config[key]
        for key in ("n_routed_experts", "num_local_experts", "num_experts")
        if key in config
    )
    model = {"experts": experts, "ranks": config.get("expert_ranks", 1)} | {
        key: config[key] for key in SIZES
    }
    switches = {key: value for key, value in os.environ.items() if key.startswith("VLLM_USE_")}
    found = {
        "gpu": None if failed else gpu,
        "versions": versions,
        "environment": switches,
        "model": model,
    }
    return {"date": time.strftime("%Y-%m-%d %H:%M")} | found


def record(file: Path, *parts: dict) -> None:
    """Add a line of JSON, of all these together."""
    with file.open("a") as lines:
        lines.write(json.dumps({key: part[key] for part in parts for key in part}) + "\n")

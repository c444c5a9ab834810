"""Start `vllm serve`, check in its log which kernels compute the experts, and end its processes.

measure.py, logprobs.py and tensor_parallel.py use it, and it writes their records.
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
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.request import urlopen

# the backend that is an installed package made by `moebench pack`
SOLUTION = "solution"
SUM = "solution_sum"  # the same package, which also sums the output over the ranks
OPTIONS = "--max-model-len 4096 --max-num-seqs 128 --no-enable-prefix-caching"
SECONDS = 900  # that a server may take to start, compiling kernels
PR_SET_PDEATHSIG = 1
EXPERT_COUNTS = ("n_routed_experts", "num_local_experts", "num_experts")
SIZES = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "moe_intermediate_size",
    "num_experts_per_tok",
)


@dataclass(frozen=True)
class Backend:
    """What computes the experts."""

    options: str  # for `vllm serve`
    # regular expression that the log must match; its group is the name of the kernels
    log: str
    has_plugin: bool = False  # vLLM loads its plugins, of which the package is one


PACKAGE = r"by (\S+: solution \w+, definition \w+)"
BACKENDS = {
    SOLUTION: Backend("", f"FP8 experts {PACKAGE}", has_plugin=True),
    SUM: Backend(
        """--additional-config '{"experts_sum_over_ranks":true}'""",
        f"Sum over ranks {PACKAGE}",
        has_plugin=True,
    ),
    "triton": Backend("--moe-backend triton", r"Using (TRITON) Fp8 MoE backend"),
    "deep_gemm": Backend(
        "--moe-backend deep_gemm", r"Using (DEEPGEMM) Fp8 MoE backend"
    ),
    # For a checkpoint with experts in bf16. `$`, because the log may not name the kernels.
    "bf16": Backend("", r"Using (\w+) Unquantized MoE backend|$"),
}


def parser_of(about: str, backends: list[str]) -> argparse.ArgumentParser:
    """Return a parser with the options that measure.py, logprobs.py and tensor_parallel.py share.

    Also make SIGTERM raise SystemExit, so that the script ends its servers.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=layout)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=backends)
    parser.add_argument(
        "--serve", default="", metavar="OPTIONS", help="of vllm serve, besides ours"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results.jsonl"),
        help="lines of JSON are added to it",
    )
    parser.add_argument(
        "--logs", type=Path, default=Path("."), help="folder for the servers' logs"
    )
    return parser


@dataclass(frozen=True)
class Server:
    """A `vllm serve` that was started and may not be ready yet."""

    process: subprocess.Popen
    url: str
    backend: str
    options: str
    log: Path


@contextmanager
def served(
    model: Path, backend: str, log: Path, options: str
) -> Iterator[tuple[str, dict]]:
    """Serve a checkpoint by one of BACKENDS while the block runs.

    Args:
        log: file for the server's output.
        options: more options of `vllm serve`, which override OPTIONS.

    Yields:
        The server's URL, and the fields that all its records share: model, machine, versions,
            options, and the kernels that its log names.

    Raises:
        RuntimeError: the server did not start, or its log does not name the backend's kernels.
    """
    server = start(model, backend, log, options)
    try:
        yield server.url, start_of_record(server, model)
    finally:
        end(server)


def start(
    model: Path, backend: str, log: Path, options: str, cache: Path | None = None
) -> Server:
    """Start a server as `served` does, without waiting for it.

    cache: folder for what vLLM compiles, where another server starts at the same time.
    """
    config = read(model)
    parts = [OPTIONS, BACKENDS[backend].options, extension(config), options]
    all_options = " ".join(filter(None, parts))

    port = free_port()
    process = start_process(model, backend, port, all_options, log, cache)
    url = f"http://127.0.0.1:{port}"
    return Server(process, url, backend, all_options, log)


def extension(config: dict) -> str:
    """Return the option for a checkpoint with expert_ranks or written_layers, else ""."""
    if "expert_ranks" in config:
        return "--worker-extension-cls one_rank.OneRank"
    if "written_layers" in config:
        return "--worker-extension-cls repeat_layers.RepeatLayers"
    return ""


def read(model: Path) -> dict:
    """Return a checkpoint's config."""
    return json.loads((model / "config.json").read_text())


def start_of_record(server: Server, model: Path) -> dict:
    """Wait until a server is ready, and return the fields that all its records share.

    Raises as `served` does.
    """
    wait_until_healthy(server.process, server.url, server.log)
    common = about(read(model)) | {"backend": server.backend, "options": server.options}
    return common | proof(server.log.read_text(), server.backend)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_process(
    model: Path, backend: str, port: int, options: str, log: Path, cache: Path | None
) -> subprocess.Popen:
    """Start a server in a new process group; the system ends it when this process ends."""
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
    command += [
        "--served-model-name",
        "moe",
        "--port",
        str(port),
        *shlex.split(options),
    ]

    environment = dict(os.environ)
    search_path = environment.get("PYTHONPATH", "")
    here = Path(__file__).parent  # of one_rank and repeat_layers
    environment["PYTHONPATH"] = f"{here}:{search_path}"
    if not BACKENDS[backend].has_plugin:
        environment["VLLM_PLUGINS"] = ""
    if cache:
        environment["VLLM_CACHE_ROOT"] = str(cache)
    with log.open("w") as file:
        return subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            env=environment,
            process_group=0,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(
                PR_SET_PDEATHSIG, signal.SIGTERM
            ),
        )


def end(server: Server) -> None:
    """End a server, and then any worker processes that it has left."""
    process = server.process
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until_healthy(process: subprocess.Popen, url: str, log: Path) -> None:
    until = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError):  # what urlopen raises before the server listens
            urlopen(f"{url}/health", timeout=5).close()
            return
        time.sleep(0.5)
    last_lines = log.read_text()[-3000:]
    raise RuntimeError(
        f"vllm serve: got no healthy server; the end of {log}:\n{last_lines}"
    )


def proof(log: str, backend: str) -> dict:
    """Return the fields of a record that are read from a server's log.

    They are the kernels of the experts, vLLM's table of tuned tiles, and whether graphs are used.
    Raises RuntimeError where the kernels are not the backend's.
    """
    wanted = BACKENDS[backend].log
    kernels = re.search(wanted, log)
    solution = re.search(BACKENDS[SOLUTION].log, log)
    if not kernels or (solution and not BACKENDS[backend].has_plugin):
        got = solution[0] if solution else None
        raise RuntimeError(
            f"log: got {got!r}, want {wanted!r} for backend {backend} and no other"
        )

    table = re.search(r"Using configuration from (\S+\.json) for MoE layer", log)
    return {
        "kernels": kernels[1],
        "tuned_table": Path(table[1]).name if table else None,
        "cuda_graphs": "Graph capturing finished" in log,
    }


def about(config: dict) -> dict:
    """Return a record's fields on model, machine and software; gpu is None without one."""
    versions = {}
    for plugin in metadata.entry_points(group="vllm.general_plugins"):
        versions[plugin.dist.name] = plugin.dist.version
    for name in ("vllm", "torch", "triton"):
        versions[name] = metadata.version(name)

    count_key = next(key for key in EXPERT_COUNTS if key in config)
    model = {"experts": config[count_key], "ranks": config.get("expert_ranks", 1)}
    model |= {key: config[key] for key in SIZES}
    if "written_layers" in config:
        model["written_layers"] = config["written_layers"]
    switches = {
        key: value for key, value in os.environ.items() if key.startswith("VLLM_USE_")
    }
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "gpu": gpus(),
        "versions": versions,
        "environment": switches,
        "model": model,
    }


def gpus() -> str | None:
    """Return name and driver of this machine's GPUs, after their number if there are several."""
    query = "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader"
    failed, output = subprocess.getstatusoutput(query)
    if failed:
        return None

    lines = output.splitlines()
    return lines[0] if len(lines) == 1 else f"{len(lines)} x {lines[0]}"


def record(file: Path, *parts: dict) -> None:
    """Append a line of JSON to a file, with the fields of all parts."""
    together = {}
    for part in parts:
        together |= part
    with file.open("a") as lines:
        lines.write(json.dumps(together) + "\n")

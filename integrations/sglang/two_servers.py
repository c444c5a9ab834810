"""Serve a checkpoint on several GPUs by SGLang's Triton kernels and by an installed package, and
measure both in turns with SGLang's own client.

    python two_servers.py CHECKPOINT --ranks 4

Both servers run at once, so that what changes with time or from machine to machine is the same for
both. README.md has the commands that make the checkpoint and the package. Each point, CONCURRENCY
requests at a time and PROMPTS in all, becomes a line of JSON in --results.
"""

# pyright: reportMissingImports=false
# SGLang is installed where a server runs, not here.

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.request import urlopen

from sglang.benchmark import serving as client

HERE = Path(__file__).parent
POINTS = ["1:8", "8:32", "32:64", "128:128"]
SECONDS = 600  # that a server may take to start
MOST_REQUESTS = 128
TOKENS_OF_REQUEST = 1024 + 128
OPTIONS = (
    "--attention-backend triton --sampling-backend pytorch --grammar-backend none"
    " --disable-prefill-cuda-graph --disable-radix-cache --skip-server-warmup"
    " --enforce-disable-flashinfer-allreduce-fusion --mm-feature-transport cpu"
    f" --context-length 4096 --max-running-requests {MOST_REQUESTS}"
    f" --cuda-graph-max-bs-decode {MOST_REQUESTS}"
)
CACHE_TOKENS = int(1.1 * MOST_REQUESTS * TOKENS_OF_REQUEST)
KEPT = (
    "completed",
    "median_ttft_ms",
    "median_tpot_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "output_throughput",
    "duration",
)
SIZES = (
    "num_hidden_layers",
    "written_layers",
    "hidden_size",
    "moe_intermediate_size",
    "num_experts_per_tok",
)


@dataclass(frozen=True)
class Backend:
    """What computes the experts."""

    options: str  # of SGLang's server
    plugins: str  # SGLANG_PLUGINS; "" for all that are installed


PACKAGE_LINE = re.compile(r"FP8 experts by (\S+: solution \w+, definition \w+)")
BACKENDS = {
    "triton": Backend("--moe-runner-backend triton", "none"),
    "solution": Backend("--moe-runner-backend deep_gemm", ""),
}


@dataclass(frozen=True)
class Server:
    """A server that was started and may not be ready yet."""

    process: subprocess.Popen
    url: str
    backend: str
    options: str
    log: Path


def start(args: argparse.Namespace, backend: str) -> Server:
    """Start a server in a process group of its own. Its share of memory is equal to the other's."""
    share = 0.9 / len(args.backends)
    memory = f"--mem-fraction-static {share:.2f} --max-total-tokens {CACHE_TOKENS}"
    parts = [
        f"--tp-size {args.ranks}",
        BACKENDS[backend].options,
        OPTIONS,
        memory,
        args.serve,
    ]
    options = " ".join(filter(None, parts))

    port = free_port()
    command = [
        sys.executable,
        str(HERE / "serve_repeated.py"),
        "--model-path",
        str(args.model),
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), *shlex.split(options)]
    environment = os.environ | {"SGLANG_PLUGINS": BACKENDS[backend].plugins}
    log = args.logs / f"{args.model.name}_{backend}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, start_new_session=True
        )
    return Server(process, f"http://127.0.0.1:{port}", backend, options, log)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def end(server: Server) -> None:
    """End a server with all its processes."""
    with suppress(ProcessLookupError):
        os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()


def wait_until_healthy(server: Server) -> None:
    """Return once a server answers. Raises RuntimeError where it does not start."""
    until = time.monotonic() + SECONDS
    while server.process.poll() is None and time.monotonic() < until:
        with suppress(OSError):  # what urlopen raises before the server listens
            urlopen(f"{server.url}/health", timeout=5).close()
            return
        time.sleep(0.5)
    last_lines = server.log.read_text()[-3000:]
    raise RuntimeError(f"got no healthy server; the end of {server.log}:\n{last_lines}")


def kernels(server: Server) -> str:
    """Return what a server's log says of its experts' kernels.

    Raises RuntimeError where a package computes that should not, or none that should.
    """
    line = PACKAGE_LINE.search(server.log.read_text())
    if (line is not None) != (server.backend == "solution"):
        got = line[0] if line else None
        raise RuntimeError(
            f"log of {server.backend}: got {got!r} on the experts' package"
        )
    return line[1] if line else "TRITON"


def about(args: argparse.Namespace) -> dict:
    """Return the fields that all records share: machine, software and model."""
    query = "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader"
    gpus = subprocess.check_output(query.split(), text=True).splitlines()
    versions = {name: metadata.version(name) for name in ("sglang", "torch", "triton")}
    for plugin in metadata.entry_points(group="sglang.srt.plugins"):
        versions[plugin.dist.name] = plugin.dist.version

    config = json.loads((args.model / "config.json").read_text())
    model = {key: config[key] for key in SIZES if key in config}
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "gpu": f"{len(gpus)} x {gpus[0]}",
        "versions": versions,
        "model": model,
    }


def measure(server: Server, model: Path, point: str) -> dict:
    """Run SGLang's client in this process, and return the KEPT figures of its report.

    point: CONCURRENCY:PROMPTS. Raises RuntimeError where a request failed.
    """
    concurrency, prompts = map(int, point.split(":"))
    options = (
        f"--num-prompts {prompts} --max-concurrency {concurrency}"
        f" --warmup-requests {concurrency} --seed {concurrency} --temperature 0"
        " --dataset-name random-ids --random-input-len 1024 --random-output-len 128"
        " --random-range-ratio 1.0 --tokenize-prompt"
    )
    with tempfile.TemporaryDirectory() as folder:
        report_file = Path(folder, "report.jsonl")
        where = (
            f"--backend sglang --base-url {server.url} --model {model} --disable-tqdm"
        )
        sys.argv = ["serving", *where.split(), *options.split()]
        sys.argv += ["--output-file", str(report_file)]
        with contextlib.redirect_stdout(sys.stderr):
            client.cli_main()
        report = json.loads(report_file.read_text().splitlines()[-1])

    if report["completed"] != prompts:
        raise RuntimeError(
            f"completed: got {report['completed']} requests, want {prompts}"
        )
    kept = {key: report[key] for key in KEPT}
    return {"concurrency": concurrency, "client": options} | kept


def parse_arguments() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    option = parser.add_argument
    option("model", type=Path, help="folder of a checkpoint")
    option("--ranks", type=int, default=4, help="GPUs; default: 4")
    option("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    points_help = f"CONCURRENCY:PROMPTS; default: {' '.join(POINTS)}"
    option("--points", nargs="+", default=POINTS, help=points_help)
    option("--repeats", type=int, default=1, help="of all points")
    option(
        "--serve",
        default="",
        metavar="OPTIONS",
        help="of SGLang's server, besides ours",
    )
    option(
        "--results",
        type=Path,
        default=Path("results.jsonl"),
        help="lines are added to it",
    )
    option("--logs", type=Path, default=Path("."), help="folder for the servers' logs")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    shared = about(args)
    with ExitStack() as stack:
        servers = []
        for backend in args.backends:
            server = start(args, backend)
            stack.callback(end, server)
            servers.append(server)
        for server in servers:
            wait_until_healthy(server)
            print(server.backend, "is up", flush=True)

        for repeat in range(args.repeats):
            for point in args.points:
                for server in servers:
                    report = measure(server, args.model, point)
                    start_of_record = {
                        "backend": server.backend,
                        "options": server.options,
                    }
                    start_of_record |= {"kernels": kernels(server), "repeat": repeat}
                    record = shared | start_of_record | report
                    with args.results.open("a") as lines:
                        lines.write(json.dumps(record) + "\n")
                    print(server.backend, repeat, report, flush=True)


if __name__ == "__main__":
    main()

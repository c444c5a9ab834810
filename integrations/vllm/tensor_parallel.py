"""Serve a model of Qwen3-235B's sizes with tensor parallelism, by vLLM's kernels and by a solution
that is installed as a package, and measure both as measure.py does.

    python tensor_parallel.py FOLDER --ranks 2

Each GPU has a slice of every expert. A checkpoint of random weights is written to FOLDER unless
there is one, with as many layers as fit into the GPUs and on the disk. The package has to be made
for such a slice: README.md has the commands.

With `--together` all servers run at once and are measured in turns, so that what changes with time
or from machine to machine is the same for all.
"""

import argparse
import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import checkpoint
import measure
import server
from server import SOLUTION, SUM, Server, parser_of

MODEL = "qwen3-235b"
MEMORY_SHARE = 0.9  # of a GPU's memory: what vLLM may use
CACHE_TOKENS = 128 * (1024 + 128)  # 128 prompts of 1024 tokens, each with 128 new ones
CACHE_MARGIN = 1.1  # factor on the size of the cache, as its blocks are rarely full
# Kept free on each GPU, for embeddings, activations and graphs, and as much on the disk.
RESERVED_BYTES = 8e9


def bytes_of_layer(sizes: dict) -> int:
    """Return the bytes of a layer's weights, experts in FP8 and attention in bf16."""
    hidden = sizes["hidden_size"]
    inner = sizes["moe_intermediate_size"]
    experts = 3 * sizes["num_experts"] * hidden * inner

    queries = sizes["num_attention_heads"]
    keys = sizes["num_key_value_heads"]
    projections = 2 * (queries + keys) * sizes["head_dim"]  # q and o, k and v
    return experts + 2 * projections * hidden


def bytes_of_cache(sizes: dict) -> int:
    """Return the bytes of a layer's keys and values for CACHE_TOKENS, in bf16."""
    columns = 2 * sizes["num_key_value_heads"] * sizes["head_dim"]
    return 2 * columns * CACHE_TOKENS


def layers_that_fit(
    sizes: dict, ranks: int, gpu_bytes: int, disk_bytes: int, servers: int = 1
) -> int:
    """Return how many layers fit into the GPUs and on the disk, at most those of the model.

    Args:
        sizes: the model's, a value of checkpoint.MODELS.
        ranks: number of GPUs.
        gpu_bytes: memory of each GPU.
        disk_bytes: free space for the checkpoint.
        servers: number of servers that run at once, with equal shares of the memory.
    """
    weights = bytes_of_layer(sizes)
    cache = bytes_of_cache(sizes)
    free = ranks * (MEMORY_SHARE * gpu_bytes / servers - RESERVED_BYTES)

    in_gpus = int(free / (weights + cache))
    on_disk = int((disk_bytes - RESERVED_BYTES) / weights)
    most = min(in_gpus, on_disk, sizes["num_hidden_layers"])
    return max(most, 0)


def gpu_bytes() -> int:
    """Return the bytes of memory of this machine's smallest GPU."""
    query = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
    output = subprocess.check_output(query.split(), text=True)
    megabytes = [int(line) for line in output.splitlines()]
    return min(megabytes) * 2**20


def write_checkpoint(args: argparse.Namespace) -> None:
    """Write the checkpoint to the folder args.model, unless it has one.

    Raises:
        SystemExit: fewer layers fit than --layers, or none; or the folder's checkpoint has another
            number of layers than --layers.
    """
    file = args.model / "config.json"
    if file.exists():
        existing = json.loads(file.read_text())["num_hidden_layers"]
        if args.layers not in (None, existing):
            sys.exit(
                f"--layers: got {args.layers}, but {file} has {existing}; name another folder"
            )
        return

    most = most_layers(args)
    layers = args.layers or most
    if not 0 < layers <= most:
        sys.exit(
            f"--layers: got {layers}, want 1 to {most}, which fit here on {args.ranks} ranks"
        )
    checkpoint.write(args.model, MODEL, layers, written=args.written)


def most_layers(args: argparse.Namespace) -> int:
    """Return how many layers fit on this machine.

    With --written only few layers are on the disk, so its free space is not looked at.
    """
    folder = args.model.absolute().parent
    free = sys.maxsize if args.written else shutil.disk_usage(folder).free
    servers = len(set(args.backends)) if args.together else 1
    return layers_that_fit(
        checkpoint.MODELS[MODEL], args.ranks, gpu_bytes(), free, servers
    )


def measure_together(args: argparse.Namespace) -> bool:
    """Start a server for each backend, then measure one after another, in each repeat.

    Return whether all have started. Those that have are measured in any case.
    """
    with ExitStack() as stack:
        servers = []
        for backend in dict.fromkeys(args.backends):
            started = start(args, backend)
            stack.callback(server.end, started)
            servers.append(started)

        starts = starts_of_records(servers, args.model)
        for repeat in range(args.repeats):
            for url, start_of_record in starts.items():
                measure.measure_points(
                    args, url, start_of_record, {"start": 0, "repeat": repeat}
                )
        return len(starts) == len(servers)


def start(args: argparse.Namespace, backend: str) -> Server:
    """Start a server that takes an equal share of each GPU's memory."""
    # The cache's size is given in bytes, because vLLM would otherwise measure free memory and count
    # what other servers allocate meanwhile as its own.
    layers = server.read(args.model)["num_hidden_layers"]
    cache_of_layer = bytes_of_cache(checkpoint.MODELS[MODEL]) / args.ranks
    cache_bytes = int(CACHE_MARGIN * layers * cache_of_layer)

    servers = len(set(args.backends))
    options = f"--gpu-memory-utilization {MEMORY_SHARE / servers:.2f}"
    options += f" --kv-cache-memory-bytes {cache_bytes} {args.serve}"

    log = args.logs / f"{args.model.name}_{backend}.log"
    compiled = args.logs.absolute() / f"compiled_{backend}"
    return server.start(args.model, backend, log, options, compiled)


def starts_of_records(servers: list[Server], model: Path) -> dict[str, dict]:
    """Return the fields that all records of a server share, by the server's URL.

    Servers that have not started are left out, and the reason is printed.
    """
    starts = {}
    for started in servers:
        try:
            starts[started.url] = server.start_of_record(started, model)
        except RuntimeError as reason:
            print(f"{started.backend}: {reason}", file=sys.stderr)
    return starts


def main() -> None:
    parser = parser_of(__doc__, ["triton", SOLUTION, SUM, "triton"])
    measure.add_arguments(parser)
    option = parser.add_argument
    option("--ranks", type=int, default=2, help="GPUs; default: 2")
    option("--layers", type=int, help="layers of the model; default: as many as fit")
    option(
        "--written",
        type=int,
        help="layers that are written and then repeated; default: all",
    )
    option(
        "--write-only",
        action="store_true",
        help="write the checkpoint, and serve nothing",
    )
    option(
        "--together", action="store_true", help="all servers at once, measured in turns"
    )
    args = parser.parse_args()

    write_checkpoint(args)
    if args.write_only:
        return
    args.serve = f"--tensor-parallel-size {args.ranks} {args.serve}"
    if not args.together:
        measure.measure_all(args)
    elif not measure_together(args):
        sys.exit("not all servers came up")


if __name__ == "__main__":
    main()

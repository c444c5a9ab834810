"""Serve Qwen3-235B's sizes on several GPUs, with a slice of every expert on each, by vLLM's own
kernels and by an installed package, and measure both.

    python tensor_parallel.py FOLDER --ranks 2

The checkpoint is written to FOLDER if there is none, with as many layers as fit into the GPUs and
on the disk. The package has to be of such a slice: README.md has the commands.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import checkpoint
import measure
from server import SOLUTION, SUM, parser_of

MODEL = "qwen3-235b"
USED = 0.9  # of a GPU's memory, by vLLM
TOKENS = 128 * (1024 + 128)  # whose keys and values are held
RESERVED = 8e9  # bytes on each GPU, for the embeddings, activations and graphs


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
    """Return the bytes of a layer's keys and values for TOKENS, in bf16."""
    numbers = 2 * sizes["num_key_value_heads"] * sizes["head_dim"]
    return 2 * numbers * TOKENS


def layers_that_fit(sizes: dict, ranks: int, gpu_bytes: int, disk_bytes: int) -> int:
    """Return how many layers fit into so many GPUs and on the disk, at most those of the model."""
    weights = bytes_of_layer(sizes)
    cache = bytes_of_cache(sizes)
    free = ranks * (USED * gpu_bytes - RESERVED)

    in_gpus = int(free / (weights + cache))
    on_disk = int((disk_bytes - RESERVED) / weights)
    most = min(in_gpus, on_disk, sizes["num_hidden_layers"])
    return max(most, 0)


def gpu_bytes() -> int:
    """Return the memory of the smallest GPU here."""
    query = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
    output = subprocess.check_output(query.split(), text=True)
    megabytes = [int(line) for line in output.splitlines()]
    return min(megabytes) * 2**20


def write_checkpoint(folder: Path, ranks: int, layers: int | None) -> None:
    """Write the checkpoint, or use the one that is there.

    Raises:
        SystemExit: not one layer fits, or the one that is there has another number.
    """
    file = folder / "config.json"
    if file.exists():
        config = json.loads(file.read_text())
        there = config["num_hidden_layers"]
        if layers not in (None, there):
            sys.exit(f"--layers: got {layers}, but {folder} has {there}; name another folder")
        return

    sizes = checkpoint.MODELS[MODEL]
    free = shutil.disk_usage(folder.absolute().parent).free
    most = layers_that_fit(sizes, ranks, gpu_bytes(), free)
    layers = layers or most
    if not 0 < layers <= most:
        sys.exit(f"--layers: got {layers}, want 1 to {most}, which fit here on {ranks} ranks")
    checkpoint.write(folder, MODEL, layers)


def main() -> None:
    parser = parser_of(__doc__, ["triton", SOLUTION, SUM, "triton"])
    measure.add_arguments(parser)
    option = parser.add_argument
    option("--ranks", type=int, default=2, help="GPUs; default: 2")
    option("--layers", type=int, help="default: as many as fit")
    option("--write-only", action="store_true", help="write the checkpoint, and serve nothing")
    args = parser.parse_args()

    write_checkpoint(args.model, args.ranks, args.layers)
    if args.write_only:
        return
    args.serve = f"--tensor-parallel-size {args.ranks} {args.serve}"
    measure.measure_all(args)


if __name__ == "__main__":
    main()

"""The ranks of a run: what torchrun started, and the tables that the first of them prints."""

import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from moebench.core.errors import CannotRun, UserError
from moebench.operators.catalogue import keys_for_gpu, layer_sizes
from rich.console import Console
from rich.table import Table


def join(layer: str, layers: list[str]) -> str:
    """Become a rank of torchrun's group and return its device, "cuda:0" or "cpu" for instance.

    Raises UserError for a layer that is none of `layers`, or a number of ranks that cannot be.
    """
    ranks = int(os.environ["WORLD_SIZE"])
    ranks_here = int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    check_layer(layer, layers, ranks)
    if ranks_here > gpus and (gpus or layer in keys_for_gpu()):
        raise CannotRun(
            f"ranks: got {ranks_here} for {gpus} GPUs on this machine;"
            " without any: --definition small"
        )

    device = None
    if gpus:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # of names that torch 2.8 has, too
    warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)
    backend = "nccl" if gpus else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=120), device_id=device)
    return str(device or "cpu")


def check_layer(layer: str, layers: list[str], ranks: int) -> None:
    """Raise UserError where a layer is none of `layers`, or does not split."""
    if layer not in layers:
        wanted = f"one of {', '.join(layers)}, all without shared experts"
        raise UserError(f"--definition: got {layer}, want {wanted}")
    experts = layer_sizes()[layer]["num_experts"]
    if experts % ranks:
        raise UserError(f"ranks: got {ranks}, want a divisor of {experts} experts")


def least_on_ranks(values: list[float], device: str) -> list[float]:
    """Return the least of each value over the ranks."""
    least = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return least.tolist()


def print_table(table: Table) -> None:
    """Print a table on the first rank."""
    if dist.get_rank() == 0:
        width = None if sys.stdout.isatty() else 120
        Console(width=width).print(table)


def run_ranks(main: Callable[[], bool]) -> int:
    """Return the exit status of main(), which returns whether all checks passed."""
    try:
        if not dist.is_torchelastic_launched():
            raise UserError(f"start it with: torchrun --nproc-per-node 2 {sys.argv[0]}")
        passed = main()
        dist.destroy_process_group()
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(error, file=sys.stderr)
        return error.status
    return 0 if passed else 1

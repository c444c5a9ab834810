"""The ranks of a run: what torchrun started, and the tables that the first of them prints.

A rank has a GPU of its own, or, with --share-gpus, shares one with others. The driver then gives
one process after the other a slice of time, even one that waits for another on the same GPU. So
what ranks compute together is right, and every time is wrong.
"""

import argparse
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

TOO_MANY_RANKS = (
    "ranks: got {ranks} for {gpus} GPUs on this machine; want --share-gpus, with which ranks"
    " take turns on a GPU and are not timed"
)


def add_share_gpus(parser: argparse.ArgumentParser) -> None:
    """Add --share-gpus, an option of both programs."""
    parser.add_argument(
        "--share-gpus",
        action="store_true",
        help="of more ranks than GPUs, some take turns on one: checked, never timed",
    )


def join(layer: str, layers: list[str], share_gpus: bool = False) -> str:
    """Become a rank of torchrun's group and return its device, "cuda:0" or "cpu" for instance.

    share_gpus: ranks that outnumber the GPUs are spread evenly over them, and the first rank says
    that.

    Raises UserError for a layer that is none of `layers`, or a number of ranks that cannot be.
    """
    ranks = int(os.environ["WORLD_SIZE"])
    ranks_here = int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    check_layer(layer, layers, ranks)
    check_ranks(ranks_here, gpus, layer, share_gpus)

    # of names that torch 2.8 has, too
    warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)
    timeout = timedelta(seconds=120)
    if not gpus:
        dist.init_process_group("gloo", timeout=timeout)
        return "cpu"

    local_rank = int(os.environ["LOCAL_RANK"])
    take_turns = ranks_here > gpus
    number = gpu_number(local_rank, ranks_here, gpus) if take_turns else local_rank
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    if take_turns:
        # torch refuses symmetric memory of two ranks on a GPU otherwise, and NCCL such ranks
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        dist.init_process_group("gloo", timeout=timeout)
        say_that_gpus_are_shared(ranks_here, gpus)
    else:
        dist.init_process_group("nccl", timeout=timeout, device_id=device)
    return str(device)


def check_ranks(ranks: int, gpus: int, layer: str, share_gpus: bool) -> None:
    """Raise CannotRun where this machine has too few GPUs for its ranks."""
    if gpus == 0 and layer in keys_for_gpu():
        raise CannotRun(
            f"--definition: got {layer}, and no GPU; want small without one"
        )
    if 0 < gpus < ranks and not share_gpus:
        raise CannotRun(TOO_MANY_RANKS.format(ranks=ranks, gpus=gpus))


def gpu_number(local_rank: int, ranks: int, gpus: int) -> int:
    """Return which of a machine's GPUs a rank shares with those next to it."""
    return local_rank * gpus // ranks


def say_that_gpus_are_shared(ranks: int, gpus: int) -> None:
    """Print on the first rank how many ranks share how many GPUs."""
    if dist.get_rank() == 0:
        names = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        print(f"{ranks} ranks take turns on {names}: checked, not timed", flush=True)


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

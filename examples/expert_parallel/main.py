"""A whole MoE layer over several ranks, checked against the reference and, on GPUs, timed.

    torchrun --nproc-per-node 2 examples/expert_parallel/main.py --definition small --solution triton_fused_v2

A rank is a GPU, over NCCL; without GPUs a process, over gloo. torchrun ends all ranks when one dies.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import exchange
import gather
import torch
import torch.distributed as dist
from harness.core import interpreter  # noqa: F401  before anything imports Triton
from harness.core.errors import CannotRun, UserError
from harness.judging.tolerances import TOLERANCES, matched_ratios
from harness.operators.catalogue import FULL, geometry_named
from harness.packing import manifest
from layer import Layer, expected, tokens_of
from local_experts import REFERENCE, local_experts
from rich.console import Console
from rich.table import Table
from timing import measure

WAYS = {"gather": gather, "exchange": exchange}
TOLERANCE = TOLERANCES["relaxed"]
TIMEOUT = timedelta(seconds=120)  # that a rank waits for another


def check(call: Callable[[], torch.Tensor], want: torch.Tensor) -> tuple[float, bool]:
    """The lowest matched ratio of all ranks, and whether two calls gave the same bits on all of them."""
    first, second = call(), call()
    matched = matched_ratios(first, want)[TOLERANCE.name]
    found = torch.tensor([matched, first.equal(second)], device=want.device)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return found[0].item(), bool(found[1])


def work(args: argparse.Namespace, rank: int, device: str) -> bool:
    """What every rank does, and whether all checks passed; the first rank prints."""
    console = Console(quiet=rank > 0, width=None if sys.stdout.isatty() else 120)
    layer = Layer(args.definition, dist.get_world_size())
    about = f"{args.solution}: {layer.of['num_experts']} experts on {layer.ranks} ranks, {dist.get_backend()}"
    checks = Table("way", "tokens", "matched", "same bits twice", "result", title=about, caption=str(TOLERANCE))
    times = Table("way", "tokens a rank", "dispatch", "experts", "combine", "call", "graph", title="ms, slowest rank")
    each, uneven = 2 if device == "cpu" else 64, [5 * rank for rank in range(layer.ranks)]
    todo = {"even": [each] * layer.ranks, "uneven, none on the first rank": uneven, "none at all": [0] * layer.ranks}
    given = [tokens_of(layer, counts[rank], rank, device) for counts in todo.values()]
    right, passed = expected(layer, given), True
    for key, way in WAYS.items():
        experts = local_experts(args.solution, layer, rank, device, way.ROUTED)
        run = partial(way.forward, layer, experts)
        for (batch, counts), tokens, want in zip(todo.items(), given, right, strict=True):
            matched, same = check(partial(run, tokens, counts), want)
            good = same and matched >= TOLERANCE.ratio
            checks.add_row(key, batch, f"{matched:.4f}", "yes" if same else "no", "PASSED" if good else "FAILED")
            passed &= good
        for each in args.tokens if device != "cpu" else ():
            ms = measure(partial(run, tokens_of(layer, each, rank, device), [each] * layer.ranks), device, way.AS_GRAPH)
            times.add_row(key, str(each), *("-" if time is None else f"{time:.3f}" for time in ms))
    for table in (checks, times):
        if table.rows:
            console.print(table)
    return passed


def join(geometry: str) -> str:
    """Become a rank of torchrun's group; its device. Raises CannotRun where there is none for it."""
    local_rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if not gpus and geometry in FULL:
        raise CannotRun(f"--definition: {geometry} needs GPUs; without any: --definition small")
    warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)  # of names that torch 2.8 has, too
    if not gpus:
        dist.init_process_group("gloo", timeout=TIMEOUT)
        return "cpu"
    if local_rank >= gpus:
        raise CannotRun(f"--nproc-per-node: got {local_rank + 1} or more, this machine has {gpus} GPUs")
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", timeout=TIMEOUT, device_id=torch.device("cuda", local_rank))
    return f"cuda:{local_rank}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--definition", default="small", help="whose layer; E / ranks replaces its local experts")
    parser.add_argument("--solution", default=REFERENCE, help=f"default: {REFERENCE}, the definition's own")
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 8, 64, 512, 4096], help="a rank; timed on GPUs")
    args, rank = parser.parse_args(), int(os.environ.get("RANK", 0))
    try:
        if "RANK" not in os.environ:
            raise UserError(f"start it with: torchrun --nproc-per-node 2 {sys.argv[0]}")
        if args.solution != REFERENCE:
            manifest.choose([args.solution])
        args.definition = geometry_named(args.definition)
        passed = work(args, rank, join(args.definition))
        dist.destroy_process_group()
    except UserError as error:
        if rank == 0:
            print(error, file=sys.stderr)
        sys.exit(error.status)
    sys.exit(not passed)


if __name__ == "__main__":
    main()

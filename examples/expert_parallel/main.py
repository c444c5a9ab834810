"""A whole MoE layer over several ranks, checked against the reference and, on GPUs, timed.

    torchrun --nproc-per-node 2 examples/expert_parallel/main.py --definition small --solution
    triton_fused_v2

A rank is a GPU, over NCCL; without GPUs a process, over gloo. torchrun ends all ranks when one
dies.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from layer import LAYERS, Tokens, tokens_of
from local_experts import REFERENCE, local_experts
from moebench.core import interpreter  # noqa: F401  before anything imports Triton
from moebench.core.errors import CannotRun, UserError
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators import catalogue
from moebench.operators.catalogue import geometry_named
from moebench.operators.moe_fp8_block_scale_routed import routed_key
from moebench.packing import pack
from rich.console import Console
from rich.table import Table
from timing import measure
from ways import exchange, gather

TOLERANCE = TOLERANCES["relaxed"]
TOKENS = [1, 8, 64, 512, 4096]
WAYS = (gather, exchange)
TIME_COLUMNS = ("way", "tokens a rank", "dispatch", "experts", "combine", "call", "graph")


@dataclass(frozen=True)
class Group:
    """This process's place among the ranks."""

    device: str
    rank: int
    ranks: int


@dataclass(frozen=True)
class Batch:
    """What is checked: a rank's tokens, and the layer's right output for them."""

    name: str
    tokens: Tokens
    expected: torch.Tensor


def join(layer: str) -> Group:
    """Become a rank of torchrun's group.

    Raises UserError where the layer or the ranks cannot be.
    """
    ranks = int(os.environ["WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    check_layer(layer, ranks)
    check_machine(layer, int(os.environ["LOCAL_WORLD_SIZE"]), gpus)

    device = None
    if gpus:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # Of names that torch 2.8 has, too.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)
    dist.init_process_group(
        "nccl" if gpus else "gloo", timeout=timedelta(seconds=120), device_id=device
    )
    return Group(str(device or "cpu"), dist.get_rank(), ranks)


def check_layer(layer: str, ranks: int) -> None:
    """Raise UserError for a layer without both definitions, and ranks that do not divide it."""
    if layer not in LAYERS:
        raise UserError(f"--definition: got {layer}, want one of {', '.join(LAYERS)}")
    experts = catalogue.geometries()[layer]["num_experts"]
    if experts % ranks:
        raise UserError(f"ranks: got {ranks}, want a divisor of {experts} experts")


def check_machine(layer: str, ranks_here: int, gpus: int) -> None:
    """Raise CannotRun where a rank would have no GPU and needs one."""
    if ranks_here > gpus and (gpus or layer in catalogue.full()):
        raise CannotRun(
            f"ranks: got {ranks_here} for {gpus} GPUs on this machine; "
            "without any: --definition small"
        )


def batches_of(layer: str, group: Group) -> list[Batch]:
    """Return the batches that are checked, with what the reference makes of them."""
    even = 2 if group.device == "cpu" else 64
    counts = {
        "even": [even] * group.ranks,
        "uneven, none on the first rank": [5 * rank for rank in range(group.ranks)],
        "none at all": [0] * group.ranks,
    }
    all_experts = range(catalogue.geometries()[layer]["num_experts"])
    reference = local_experts(REFERENCE, layer, all_experts, group.device, routed=True)

    batches = []
    for name, tokens_of_ranks in counts.items():
        tokens = tokens_of(layer, tokens_of_ranks, group.rank, group.device)
        expected = reference(tokens.x, tokens.scale, tokens.ids, tokens.weights)
        batches.append(Batch(name, tokens, expected))
    return batches


def check(way: Callable, steps: Callable, batch: Batch, table: Table) -> bool:
    """Add a row on a batch; return whether it is right, and the same twice, on all ranks."""
    first = list(steps(batch.tokens))[-1]
    second = list(steps(batch.tokens))[-1]
    ratio = matched_ratios(first, batch.expected)[TOLERANCE.name]
    least = torch.tensor([ratio, first.equal(second)], device=first.device)
    dist.all_reduce(least, dist.ReduceOp.MIN)

    ratio, is_same = least.tolist()
    is_right = bool(is_same) and ratio >= TOLERANCE.ratio
    table.add_row(
        way.__name__,
        batch.name,
        f"{ratio:.4f}",
        "yes" if is_same else "no",
        "PASSED" if is_right else "FAILED",
    )
    return is_right


def time_way(
    way: Callable, steps: Callable, layer: str, counts: list[int], group: Group, table: Table
) -> None:
    """Add a row for each number of tokens a rank."""
    for count in counts:
        tokens = tokens_of(layer, [count] * group.ranks, group.rank, group.device)
        times = measure(partial(steps, tokens), as_graph=way is gather)
        table.add_row(way.__name__, str(count), *(f"{ms:.3f}" for ms in times))


def work(args: argparse.Namespace, group: Group) -> bool:
    """Do what every rank does; return whether all checks passed. The first rank prints."""
    layer = args.definition
    experts = catalogue.geometries()[layer]["num_experts"]
    first = experts * group.rank // group.ranks
    end = experts * (group.rank + 1) // group.ranks
    batches = batches_of(layer, group)

    title = f"{args.solution}: {experts} experts on {group.ranks} ranks, {dist.get_backend()}"
    columns = ("way", "tokens", "matched", "same bits twice", "result")
    checks = Table(*columns, title=title, caption=str(TOLERANCE))
    times = Table(*TIME_COLUMNS, title="ms, slowest rank")
    all_pass = True
    for way in WAYS:
        run_experts = local_experts(
            args.solution, layer, range(first, end), group.device, routed=way is exchange
        )
        steps = partial(way, run_experts)
        for batch in batches:
            all_pass = check(way, steps, batch, checks) and all_pass
        if group.device != "cpu":
            time_way(way, steps, layer, args.tokens, group, times)

    console = Console(quiet=group.rank > 0, width=None if sys.stdout.isatty() else 120)
    for table in (checks, times):
        if table.rows:
            console.print(table)
    return all_pass


def check_solution(name: str, layer: str) -> None:
    """Raise UserError for a solution that does not serve both definitions of the layer."""
    if name == REFERENCE:
        return
    served = pack.pack_all([name])[0][name]
    missing = {layer, routed_key(layer)} - served.keys()
    if missing:
        raise UserError(f"--solution: {name} does not serve {', '.join(sorted(missing))}")


def parsed() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument(
        "--definition", default="small", help="whose layer; E / ranks replaces its local experts"
    )
    parser.add_argument(
        "--solution", default=REFERENCE, help=f"default: {REFERENCE}, the definition's own"
    )
    parser.add_argument(
        "--tokens", nargs="+", type=int, default=TOKENS, help="a rank; timed on GPUs"
    )
    return parser.parse_args()


def main() -> int:
    args = parsed()
    try:
        if not dist.is_torchelastic_launched():
            raise UserError(f"start it with: torchrun --nproc-per-node 2 {sys.argv[0]}")
        args.definition = geometry_named(args.definition)
        check_solution(args.solution, args.definition)
        all_pass = work(args, join(args.definition))
        dist.destroy_process_group()
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(error, file=sys.stderr)
        return error.status
    return 0 if all_pass else 1


if __name__ == "__main__":
    sys.exit(main())

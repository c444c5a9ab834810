"""A whole MoE layer over several ranks with tokens of their own, checked against the reference and,
on GPUs, timed.

    torchrun --nproc-per-node 2 examples/multi_gpu/dispatch.py --definition small --solution
    triton_fused_v2

Experts are split over the ranks, and tokens travel. A rank is a GPU, over NCCL; without GPUs, or
with --share-gpus, a process, over gloo. torchrun ends all ranks when one dies.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch.distributed as dist
from layer import WITH_BIAS, Tokens, expert_share, tokens_of, weights_of
from local_layer import REFERENCE, local_layer
from moebench.core import interpreter  # noqa: F401  before anything imports Triton
from moebench.core.errors import UserError
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators.catalogue import layer_key_named, layer_sizes
from moebench.operators.fp8.routed import routed_key
from moebench.packing import pack
from ranks import add_share_gpus, join, least_on_ranks, print_table, run_ranks
from rich.table import Table
from timing import measure
from ways import exchange, gather

WAYS = (gather, exchange)
TOLERANCE = TOLERANCES["relaxed"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--definition",
        default="small",
        help="whose layer; E / ranks replaces its local experts",
    )
    parser.add_argument(
        "--solution",
        default=REFERENCE,
        help=f"default: {REFERENCE}, the definition's own",
    )
    parser.add_argument(
        "--tokens",
        nargs="+",
        type=int,
        default=[1, 8, 64, 512, 4096],
        help="a rank; timed on GPUs",
    )
    add_share_gpus(parser)
    return parser.parse_args()


def check_solution(name: str, layer: str) -> None:
    """Raise UserError where a solution lacks one of the layer's two forms."""
    if name == REFERENCE:
        return

    packed, _ = pack.pack_all([name])
    wanted = {layer, routed_key(layer)}
    missing = wanted - packed[name].keys()
    if missing:
        listed = ", ".join(sorted(missing))
        raise UserError(f"--solution: {name} does not serve {listed}")


def batches_of(device: str) -> dict[str, list[int]]:
    """Return the tokens of each rank in each batch that is checked."""
    ranks = dist.get_world_size()
    count = 2 if device == "cpu" else 64
    return {
        "even": [count] * ranks,
        "uneven, none on the first rank": [5 * rank for rank in range(ranks)],
        "none at all": [0] * ranks,
    }


def expected_outputs(layer: str, batches: dict[str, Tokens], device: str) -> dict:
    """Return what the reference of the whole layer makes of each batch."""
    only_share = expert_share(layer, 0, 1)
    whole = replace(only_share, is_routed=True)
    weights = weights_of(whole, device)
    reference = local_layer(REFERENCE, whole, weights)

    expected = {}
    for batch, tokens in batches.items():
        expected[batch] = reference(*tokens.routed_inputs)
    return expected


def check(steps: Callable, tokens: Tokens, expected, device: str) -> tuple[float, bool]:
    """Return the least share of matched elements, and whether two calls gave the same bits."""
    *_, first = steps(tokens)
    *_, second = steps(tokens)

    ratios = matched_ratios(first, expected)
    matched_here = ratios[TOLERANCE.name]
    same_here = first.equal(second)
    matched, same = least_on_ranks([matched_here, same_here], device)
    return matched, bool(same)


def run_way(way: Callable, args: argparse.Namespace, device: str) -> Callable:
    """Return a way's steps with the solution for this rank's experts."""
    share = expert_share(args.definition, dist.get_rank(), dist.get_world_size())
    share = replace(share, is_routed=way is exchange)
    weights = weights_of(share, device)
    experts = local_layer(args.solution, share, weights)
    return partial(way, experts)


def check_ways(args: argparse.Namespace, device: str) -> tuple[Table, bool]:
    """Return the table of all checks, and whether all passed."""
    layer = args.definition
    table = Table("way", "tokens", "matched", "same bits twice", "result")
    experts = layer_sizes()[layer]["num_experts"]
    ranks = f"{dist.get_world_size()} ranks, {dist.get_backend()}"
    table.title = f"{args.solution}: {experts} experts on {ranks}"
    table.caption = str(TOLERANCE)

    rank = dist.get_rank()
    batches = {}
    for batch, counts in batches_of(device).items():
        batches[batch] = tokens_of(layer, counts, rank, device)
    expected = expected_outputs(layer, batches, device)

    all_passed = True
    for way in WAYS:
        steps = run_way(way, args, device)
        for batch, tokens in batches.items():
            matched, same = check(steps, tokens, expected[batch], device)
            passed = same and matched >= TOLERANCE.ratio
            all_passed &= passed

            same_bits = "yes" if same else "no"
            outcome = "PASSED" if passed else "FAILED"
            table.add_row(way.__name__, batch, f"{matched:.4f}", same_bits, outcome)
    return table, all_passed


def times_of(args: argparse.Namespace, device: str) -> Table:
    """Return the table of times. Only `gather` can be a graph: the host never waits in it."""
    table = Table(
        "way", "tokens a rank", "dispatch", "experts", "combine", "call", "graph"
    )
    table.title = "ms, slowest rank"
    for way in WAYS:
        steps = run_way(way, args, device)
        for count in args.tokens:
            counts = [count] * dist.get_world_size()
            tokens = tokens_of(args.definition, counts, dist.get_rank(), device)
            ms = measure(partial(steps, tokens), as_graph=way is gather)
            texts = [f"{time:.3f}" for time in ms]
            table.add_row(way.__name__, str(count), *texts)
    return table


def work() -> bool:
    """Do what every rank does, print the tables, and return whether all checks passed."""
    args = parse_arguments()
    args.definition = layer_key_named(args.definition)
    check_solution(args.solution, args.definition)
    device = join(args.definition, WITH_BIAS, args.share_gpus)

    checks, all_passed = check_ways(args, device)
    print_table(checks)
    if device != "cpu" and not args.share_gpus:
        print_table(times_of(args, device))
    return all_passed


if __name__ == "__main__":
    sys.exit(run_ranks(work))

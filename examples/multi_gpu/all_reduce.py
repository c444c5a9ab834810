"""One MoE layer split over the GPUs of a host, whose outputs are summed: checked, and timed.

    torchrun --nproc-per-node 2 examples/multi_gpu/all_reduce.py --definition small --split width
    torchrun --nproc-per-node 2 examples/multi_gpu/all_reduce.py --definition deepseek-v3-ep1
    --solution hopper_fused --split width

All ranks have the same tokens. --split width: each rank has all experts and a part of their width
(tensor parallelism); --split experts: some of the experts (expert parallelism). Every way to sum
is checked against the sum, in fp32, of what the reference makes of each rank's share.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from layer import (
    WITHOUT_SHARED_EXPERTS,
    Share,
    expert_share,
    same_tokens,
    weights_of,
    width_share,
)
from local_layer import REFERENCE, arguments_of, output_for
from moebench.core import interpreter  # noqa: F401  before anything imports Triton
from moebench.core.errors import UserError
from moebench.operators.catalogue import layer_key_named, layer_sizes
from moebench.operators.fp8.reference import BLOCK
from moebench.packing import pack
from ranks import add_share_gpus, join, least_on_ranks, print_table, run_ranks
from rich.table import Table
from sum_checks import check_ways
from sums import Ways, ways_of
from timing import graph_us

SPLITS = {"width": width_share, "experts": expert_share}
LAYERS = 20  # of a graph that is timed
ALONE = "the layer alone"
TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--definition", default="small", help="whose layer is split")
    add("--split", choices=SPLITS, default="width")
    shares_help = "of the layer, of which the ranks have the first; default: ranks"
    add("--shares", type=int, help=shares_help)
    add(
        "--solution",
        default=REFERENCE,
        help=f"default: {REFERENCE}, the definition's own",
    )
    add("--tokens", nargs="+", type=int, default=TOKENS)
    add("--rounds", type=int, default=15, help="timed replays of each graph; 0: none")
    add("--record", type=Path, help="a JSONL file to which times are appended")
    add_share_gpus(parser)
    return parser.parse_args()


def check_arguments(args: argparse.Namespace) -> None:
    """Raise UserError where the layer does not split, a solution does not serve it, or no time is
    there to record.
    """
    if args.share_gpus and args.record:
        raise UserError("--record: ranks that take turns (--share-gpus) are not timed")
    check_shares(args)
    if args.solution == REFERENCE:
        return

    packed, _ = pack.pack_all([args.solution])
    if packed_key(args) not in packed[args.solution]:
        raise UserError(f"--solution: {args.solution} does not serve {args.definition}")


def check_shares(args: argparse.Namespace) -> None:
    """Raise UserError where the layer does not split into so many shares."""
    if args.shares < dist.get_world_size():
        raise UserError(f"--shares: got {args.shares}, want the ranks' number or more")

    sizes = layer_sizes()[args.definition]
    columns = sizes["intermediate_size"]
    experts = sizes["num_experts"]
    one_block_each = args.shares * BLOCK
    if args.split == "width" and columns % one_block_each:
        raise UserError(
            f"--split width: got {args.shares} shares of {columns} columns,"
            f" want shares of a multiple of {BLOCK}"
        )
    if args.split == "experts" and experts % args.shares:
        raise UserError(f"--shares: got {args.shares}, want a divisor of {experts}")


def packed_key(args: argparse.Namespace) -> str:
    """Return the key of the definition that the solution is packed for."""
    share_of = SPLITS[args.split]
    first_share = share_of(args.definition, 0, args.shares)
    return first_share.definition_key


def layers_that_fit(share: Share, device: str) -> list[list]:
    """Return the weights of as many layers as fit, up to LAYERS, as a definition's arguments."""
    first = weights_of(share, device)
    layer_bytes = sum(tensor.nbytes for tensor in first.tensors())
    free, _ = torch.cuda.mem_get_info()
    fitting_here = 1 + int(free * 0.8) // layer_bytes
    (fitting,) = least_on_ranks([fitting_here], device)
    count = min(LAYERS, int(fitting))

    layers = [arguments_of(first, share)]
    for seed in range(1, count):
        weights = weights_of(share, device, seed)
        layers.append(arguments_of(weights, share))
    return layers


def model_of(way: Callable, layers: list[list], inputs: list[list], output) -> Callable:
    """Return a function that runs LAYERS layers one after the other."""

    def run():
        for number in range(LAYERS):
            arguments = layers[number % len(layers)]
            way(*inputs[number], *arguments, output)

    return run


def inputs_of_layers(share: Share, count: int, device: str) -> list[list[torch.Tensor]]:
    """Return the tokens' arguments for each of LAYERS layers."""
    inputs = []
    for seed in range(LAYERS):
        tokens = same_tokens(share.layer, count, device, seed)
        inputs.append(tokens.inputs_of(share))
    return inputs


def times_of(ways: Ways, args: argparse.Namespace, share: Share, device: str) -> Table:
    """Return the table of times, and append them to --record."""
    timed = {ALONE: ways.layer, **ways.sums}
    table = Table("T", *timed, title=f"us a layer, a graph of {LAYERS}, slowest rank")
    layers = layers_that_fit(share, device)
    for count in args.tokens:
        inputs = inputs_of_layers(share, count, device)
        output = output_for(inputs[0][0], share.layer)
        models = {}
        for name, way in timed.items():
            models[name] = model_of(way, layers, inputs, output)

        us = graph_us(models, args.rounds, LAYERS)
        texts = [f"{time:.1f}" for time in us.values()]
        table.add_row(str(count), *texts)
        record(args, count, len(layers), us)
    return table


def record(
    args: argparse.Namespace, tokens: int, layers: int, us: dict[str, float]
) -> None:
    """Append a line to --record, on the first rank."""
    if args.record is None or dist.get_rank() > 0:
        return

    rounded_us = {name: round(value, 2) for name, value in us.items()}
    line = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "ranks": dist.get_world_size(),
        "definition": args.definition,
        "split": args.split,
        "shares": args.shares,
        "solution": args.solution,
        "source": packed_hash(args),
        "layers": LAYERS,
        "layers_of_weights": layers,
        "rounds": args.rounds,
        "tokens": tokens,
        "us": rounded_us,
    }
    with args.record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def packed_hash(args: argparse.Namespace) -> str | None:
    """Return the hash of the packed solution, None of the reference."""
    if args.solution == REFERENCE:
        return None
    packed = pack.pack(args.solution)
    return packed[packed_key(args)].hash()


def work() -> bool:
    """Do what every rank does, print the tables, and return whether all checks passed."""
    args = parse_arguments()
    args.definition = layer_key_named(args.definition)
    device = join(args.definition, WITHOUT_SHARED_EXPERTS, args.share_gpus)
    ranks = dist.get_world_size()
    args.shares = args.shares or ranks
    check_arguments(args)

    share_of = SPLITS[args.split]
    share = share_of(args.definition, dist.get_rank(), args.shares)
    most_tokens = max(args.tokens)
    ways = ways_of(args.solution, share, most_tokens, device)

    checks, all_passed = check_ways(ways, share, args.tokens, device)
    parts = f"{args.split} in {args.shares}, {ranks} ranks"
    checks.title = f"{args.solution}: {args.definition}, {parts}"
    print_table(checks)

    is_timed = device != "cpu" and args.rounds and not args.share_gpus
    if is_timed:
        print_table(times_of(ways, args, share, device))
    if ways.peers is not None:
        torch.cuda.synchronize()
        ways.peers.check()
    return all_passed


if __name__ == "__main__":
    sys.exit(run_ranks(work))

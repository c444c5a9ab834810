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
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from layer import Share, Tokens, expert_share, routed_tokens, tokens_of, weights_of, width_share
from local_layer import REFERENCE, arguments_of, local_layer, output_for
from moebench.core import interpreter  # noqa: F401  before anything imports Triton
from moebench.core.errors import UserError
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators.catalogue import layer_key_named, layer_sizes
from moebench.operators.fp8_layer import BLOCK
from moebench.packing import pack
from ranks import join, on_all_ranks, print_tables, run_ranks
from rich.table import Table
from sums import Ways, ways_of
from timing import graph_us

SPLITS = {"width": width_share, "experts": expert_share}
TOLERANCE = TOLERANCES["relaxed"]
UNLIKELY = 50.0  # what is taken off the logits of experts that no token shall choose
LATE_SECONDS = 0.2
LAYERS = 20  # of a graph that is timed
ALONE = "the layer alone"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--definition", default="small", help="whose layer is split")
    parser.add_argument("--split", choices=SPLITS, default="width")
    parser.add_argument(
        "--shares", type=int, help="of the layer, of which the ranks have the first; default: ranks"
    )
    parser.add_argument(
        "--solution", default=REFERENCE, help=f"default: {REFERENCE}, the definition's own"
    )
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument(
        "--rounds", type=int, default=15, help="timed replays of each graph; 0: none"
    )
    parser.add_argument("--record", type=Path, help="a JSONL file to which times are appended")
    return parser.parse_args()


def check_arguments(args: argparse.Namespace) -> None:
    """Raise UserError where a solution does not serve the layer, or the layer does not split."""
    sizes = layer_sizes()[args.definition]
    if args.shares < dist.get_world_size():
        raise UserError(f"--shares: got {args.shares}, want the ranks' number or more")
    if args.split == "width" and sizes["intermediate_size"] % (args.shares * BLOCK):
        raise UserError(
            f"--split width: got {args.shares} shares of {sizes['intermediate_size']} columns,"
            f" want shares of a multiple of {BLOCK}"
        )
    if args.split == "experts" and sizes["num_experts"] % args.shares:
        raise UserError(f"--shares: got {args.shares}, want a divisor of {sizes['num_experts']}")
    if args.solution != REFERENCE:
        (served,) = pack.pack_all([args.solution])[0].values()
        if args.definition not in served:
            raise UserError(f"--solution: {args.solution} does not serve {args.definition}")


# ---- checks ----


@dataclass(frozen=True)
class Case:
    """Tokens that every way is checked with."""

    name: str
    tokens: Tokens
    late_rank: int | None = None  # which begins later than the others


def cases_of(layer: str, tokens: list[int], device: str) -> list[Case]:
    cases = [Case("", tokens_of(layer, [count], 0, device)) for count in tokens]
    few = min(tokens)
    most = max(tokens)
    cases.append(Case("first experts only", with_first_experts(layer, few, device)))
    cases.append(Case("first experts only", with_first_experts(layer, most, device)))
    cases.append(Case("first rank late", tokens_of(layer, [few], 0, device), late_rank=0))
    cases.append(
        Case("last rank late", tokens_of(layer, [few], 0, device), dist.get_world_size() - 1)
    )
    cases.append(Case("no token", tokens_of(layer, [0], 0, device)))
    return cases


def with_first_experts(layer: str, count: int, device: str) -> Tokens:
    """Return tokens for as few of the first experts as a router lets them have: other ranks have no
    row where experts are split.
    """
    tokens = tokens_of(layer, [count], 0, device)
    sizes = layer_sizes()[layer]
    groups = sizes["num_groups"] // sizes["kept_groups"]
    first = max(sizes["num_experts"] // groups // 2, 2 * sizes["top_k"])
    logits = tokens.logits.clone()
    logits[:, first:] -= UNLIKELY
    bias = torch.zeros_like(tokens.bias)
    return routed_tokens(layer, tokens.x, tokens.scale, logits, bias, tokens.counts)


def inputs_of(tokens: Tokens) -> list[torch.Tensor]:
    """Return the definition's inputs before the weights."""
    return [tokens.logits, tokens.bias, tokens.x, tokens.scale.t().contiguous()]


def gathered(output: torch.Tensor) -> list[torch.Tensor]:
    outputs = [torch.empty_like(output) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, output)
    return outputs


def expected_output(reference: Callable, tokens: Tokens) -> torch.Tensor:
    """Return the sum over the ranks, in fp32, of what the reference makes of each one's share."""
    partial_output = reference(*inputs_of(tokens))
    total = torch.zeros_like(partial_output, dtype=torch.float32)
    for part in gathered(partial_output):
        total += part.float()
    return total.bfloat16()


@dataclass(frozen=True)
class Result:
    matched: float  # the least of all ranks
    same_on_ranks: bool
    same_twice: bool

    def passed(self) -> bool:
        return self.matched >= TOLERANCE.ratio and self.same_on_ranks and self.same_twice


def check(way: Callable, case: Case, arguments: list, layer: str, expected, device: str) -> Result:
    """Run a way twice, and compare with the expected output, among the ranks and with itself."""
    outputs = []
    for _ in range(2):
        if case.late_rank == dist.get_rank():
            time.sleep(LATE_SECONDS)
        output = output_for(case.tokens.x, layer)
        way(*inputs_of(case.tokens), *arguments, output)
        outputs.append(output)

    first, second = outputs
    matched = matched_ratios(first, expected)[TOLERANCE.name]
    same_on_ranks = all(part.equal(first) for part in gathered(first))
    least = on_all_ranks([matched, same_on_ranks, first.equal(second)], least=True, device=device)
    return Result(least[0], bool(least[1]), bool(least[2]))


def check_ways(ways: Ways, args: argparse.Namespace, share: Share, device: str) -> tuple:
    """Return the table of all checks, and whether all passed."""
    layer = args.definition
    weights = weights_of(share, device, gate_first=False)
    reference = local_layer(REFERENCE, share, weights, routed=False)
    arguments = arguments_of(weights, share, routed=False)
    cases = cases_of(layer, args.tokens, device)
    expected = [expected_output(reference, case.tokens) for case in cases]

    title = (
        f"{args.solution}: {layer}, {args.split} in {args.shares}, {dist.get_world_size()} ranks"
    )
    table = Table(
        "way", "T", "case", "matched", "ranks alike", "twice alike", "result", title=title
    )
    table.caption = str(TOLERANCE)
    all_passed = True
    for name, way in ways.sums.items():
        for case, output in zip(cases, expected, strict=True):
            result = check(way, case, arguments, layer, output, device)
            all_passed &= result.passed()
            table.add_row(
                name,
                str(len(case.tokens.x)),
                case.name,
                f"{result.matched:.4f}",
                "yes" if result.same_on_ranks else "no",
                "yes" if result.same_twice else "no",
                "PASSED" if result.passed() else "FAILED",
            )
    return table, all_passed


# ---- times ----


def layers_that_fit(share: Share, device: str) -> list[list]:
    """Return the weights of as many layers as fit, up to LAYERS, as a definition's arguments."""
    layers = [arguments_of(weights_of(share, device, gate_first=False), share, routed=False)]
    layer_bytes = sum(tensor.nbytes for tensor in layers[0] if torch.is_tensor(tensor))
    free, _ = torch.cuda.mem_get_info()
    count = min(LAYERS, 1 + int(free * 0.8) // layer_bytes)
    count = int(on_all_ranks([count], least=True, device=device)[0])
    for seed in range(1, count):
        weights = weights_of(share, device, gate_first=False, seed=seed)
        layers.append(arguments_of(weights, share, routed=False))
    return layers


def model_of(way: Callable, layers: list[list], inputs: list[list], output) -> Callable:
    """Return a function that runs LAYERS layers one after the other."""

    def run():
        for number in range(LAYERS):
            way(*inputs[number], *layers[number % len(layers)], output)

    return run


def times_of(ways: Ways, args: argparse.Namespace, share: Share, device: str) -> Table:
    """Return the table of times, and append them to --record."""
    named = {ALONE: ways.layer, **ways.sums}
    table = Table("T", *named, title=f"us a layer, a graph of {LAYERS}, slowest rank")
    layers = layers_that_fit(share, device)
    for count in args.tokens:
        tokens = [tokens_of(args.definition, [count], 0, device, seed) for seed in range(LAYERS)]
        inputs = [inputs_of(layer_tokens) for layer_tokens in tokens]
        output = output_for(tokens[0].x, args.definition)
        models = {name: model_of(way, layers, inputs, output) for name, way in named.items()}
        us = graph_us(models, args.rounds, LAYERS)
        table.add_row(str(count), *(f"{us[name]:.1f}" for name in named))
        record(args, count, len(layers), us)
    return table


def record(args: argparse.Namespace, tokens: int, layers: int, us: dict[str, float]) -> None:
    """Append a line to --record, on the first rank."""
    if args.record is None or dist.get_rank() > 0:
        return

    source = None
    if args.solution != REFERENCE:
        source = pack.pack(args.solution)[args.definition].hash()
    line = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "ranks": dist.get_world_size(),
        "definition": args.definition,
        "split": args.split,
        "shares": args.shares,
        "solution": args.solution,
        "source": source,
        "layers": LAYERS,
        "layers_of_weights": layers,
        "rounds": args.rounds,
        "tokens": tokens,
        "us": {name: round(value, 2) for name, value in us.items()},
    }
    with args.record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def work() -> bool:
    """Do what every rank does, print the tables, and return whether all checks passed."""
    args = parse_arguments()
    args.definition = layer_key_named(args.definition)
    device = join(args.definition)
    args.shares = args.shares or dist.get_world_size()
    check_arguments(args)

    share = SPLITS[args.split](args.definition, dist.get_rank(), args.shares)
    ways = ways_of(args.solution, share, max(args.tokens), device)
    checks, all_passed = check_ways(ways, args, share, device)
    print_tables([checks])

    if device != "cpu" and args.rounds:
        print_tables([times_of(ways, args, share, device)])
    if ways.peers is not None:
        torch.cuda.synchronize()
        ways.peers.check()
    return all_passed


if __name__ == "__main__":
    sys.exit(run_ranks(work))

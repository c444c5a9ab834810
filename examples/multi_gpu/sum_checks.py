"""Every way to sum, checked against the sum, in fp32, of what the reference makes of each rank's
share.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from layer import Share, Tokens, routed_tokens, same_tokens, weights_of
from local_layer import REFERENCE, arguments_of, local_layer
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators.catalogue import layer_sizes
from ranks import least_on_ranks
from rich.table import Table
from sums import Ways

TOLERANCE = TOLERANCES["relaxed"]
UNLIKELY = 50.0  # what is taken off the logits of experts that no token shall choose
LATE_SECONDS = 0.2
HEAD = ("T", "case", "way", "matched", "ranks alike", "twice alike", "result")


@dataclass(frozen=True)
class Case:
    """Tokens that every way is checked with, and the rank that begins later than the others."""

    name: str
    tokens: Tokens
    late_rank: int | None = None


@dataclass(frozen=True)
class Result:
    """What two runs of a way gave: the least share matched on any rank, and whether outputs are
    alike on all ranks and in both runs.
    """

    matched: float
    same_on_ranks: bool
    same_twice: bool

    @property
    def passed(self) -> bool:
        return (
            self.matched >= TOLERANCE.ratio and self.same_on_ranks and self.same_twice
        )

    def texts(self) -> list[str]:
        """Return the last columns of HEAD."""
        same_on_ranks = "yes" if self.same_on_ranks else "no"
        same_twice = "yes" if self.same_twice else "no"
        outcome = "PASSED" if self.passed else "FAILED"
        return [f"{self.matched:.4f}", same_on_ranks, same_twice, outcome]


def check_ways(
    ways: Ways, share: Share, tokens: list[int], device: str
) -> tuple[Table, bool]:
    """Return the table of all checks at these numbers of tokens, and whether all passed."""
    weights = weights_of(share, device)
    reference = local_layer(REFERENCE, share, weights)
    arguments = arguments_of(weights, share)

    table = Table(*HEAD, caption=str(TOLERANCE))
    all_passed = True
    for case in cases_of(share.layer, tokens, device):
        inputs = case.tokens.inputs_of(share)
        expected = expected_output(reference, inputs)
        count = str(len(case.tokens.x))
        for name, way in ways.sums.items():
            result = check(way, case, [*inputs, *arguments], expected)
            all_passed &= result.passed
            table.add_row(count, case.name, name, *result.texts())
    return table, all_passed


def cases_of(layer: str, tokens: list[int], device: str) -> list[Case]:
    """Return a case for each number of tokens, and those that are likely to go wrong."""
    few = min(tokens)
    many = max(tokens)
    last_rank = dist.get_world_size() - 1

    cases = [Case("", same_tokens(layer, count, device)) for count in tokens]
    few_tokens = same_tokens(layer, few, device)
    cases += [
        Case("first experts only", with_first_experts(layer, few, device)),
        Case("first experts only", with_first_experts(layer, many, device)),
        Case("first rank late", few_tokens, late_rank=0),
        Case("last rank late", few_tokens, late_rank=last_rank),
        Case("no token", same_tokens(layer, 0, device)),
    ]
    return cases


def with_first_experts(layer: str, count: int, device: str) -> Tokens:
    """Return tokens for as few of the first experts as a router lets them have: other ranks have no
    row where experts are split.
    """
    sizes = layer_sizes()[layer]
    groups = sizes["num_groups"] // sizes["kept_groups"]
    experts_of_groups = sizes["num_experts"] // groups
    first = max(experts_of_groups // 2, 2 * sizes["top_k"])

    tokens = same_tokens(layer, count, device)
    logits = tokens.logits.clone()
    logits[:, first:] -= UNLIKELY
    bias = torch.zeros_like(tokens.bias)
    return routed_tokens(layer, tokens.x, tokens.scale, logits, bias, tokens.counts)


def gathered(output: torch.Tensor) -> list[torch.Tensor]:
    """Return every rank's output."""
    ranks = dist.get_world_size()
    outputs = [torch.empty_like(output) for _ in range(ranks)]
    dist.all_gather(outputs, output)
    return outputs


def expected_output(reference: Callable, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum over the ranks, in fp32, of what the reference makes of each one's share."""
    partial_output = reference(*inputs)
    total = torch.zeros_like(partial_output, dtype=torch.float32)
    for part in gathered(partial_output):
        total += part.float()
    return total.bfloat16()


def check(way: Callable, case: Case, arguments: list, expected: torch.Tensor) -> Result:
    """Run a way twice, and compare with the expected output, among the ranks and with itself.

    arguments: of the layer, without the output.
    """
    outputs = []
    for _ in range(2):
        if case.late_rank == dist.get_rank():
            time.sleep(LATE_SECONDS)
        output = torch.full_like(expected, float("nan"))
        way(*arguments, output)
        outputs.append(output)

    first, second = outputs
    ratios = matched_ratios(first, expected)
    outputs_of_ranks = gathered(first)
    results_here = [
        ratios[TOLERANCE.name],
        all(output.equal(first) for output in outputs_of_ranks),
        first.equal(second),
    ]
    matched, same_on_ranks, same_twice = least_on_ranks(results_here, first.device)
    return Result(matched, bool(same_on_ranks), bool(same_twice))

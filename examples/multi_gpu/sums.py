"""Ways to compute a layer of which each rank has a share, and to sum the ranks' outputs.

A way is a function of the layer's arguments, of which the last is the output. All ranks have the
same tokens, and get the same output.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from layer import Share
from local_layer import function_of, summed_function_of

GROUP_SUM = "group's all-reduce"
ONE_SHOT = "symmetric memory, one-shot"
TWO_SHOT = "symmetric memory, two-shot"
# the solution's own, in the layer's launch where tokens are few
IN_LAUNCH = "run_allreduce"


@dataclass(frozen=True)
class Ways:
    """The layer alone, and the ways to have its sum, by name."""

    layer: Callable
    sums: dict[str, Callable]
    peers: object = None  # those of `run_allreduce`


def ways_of(solution: str, share: Share, most_tokens: int, device: str) -> Ways:
    """Return the ways that a solution and the machine have. All ranks call it together."""
    layer = function_of(solution, share)
    sums = {GROUP_SUM: group_sum(layer)}
    if device == "cpu":
        return Ways(layer, sums)

    rows = symmetric_rows(most_tokens, share.sizes["hidden_size"], device)
    one_shot = torch.ops.symm_mem.one_shot_all_reduce_out
    two_shot = torch.ops.symm_mem.two_shot_all_reduce_out
    sums[ONE_SHOT] = symmetric_sum(layer, rows, one_shot)
    sums[TWO_SHOT] = symmetric_sum(layer, rows, two_shot)

    summed = summed_function_of(solution, share)
    if summed is None:
        return Ways(layer, sums)
    run_allreduce, peers_class = summed
    peers = peers_class(max_tokens=most_tokens)
    sums[IN_LAUNCH] = partial(run_allreduce, peers=peers)
    return Ways(layer, sums, peers)


def group_sum(layer: Callable) -> Callable:
    """The layer, then the process group's all-reduce: NCCL's where ranks have a GPU each, else
    gloo's.
    """

    def way(*arguments):
        layer(*arguments)
        dist.all_reduce(arguments[-1])

    return way


def symmetric_rows(tokens: int, hidden_size: int, device: str) -> torch.Tensor:
    """Return memory [tokens, hidden_size] bf16 that all ranks can reach."""
    # not on every platform, so imported where it is needed
    from torch.distributed import _symmetric_memory as symmetric_memory

    rows = symmetric_memory.empty(
        tokens, hidden_size, dtype=torch.bfloat16, device=device
    )
    symmetric_memory.rendezvous(rows, dist.group.WORLD.group_name)
    return rows


def symmetric_sum(layer: Callable, rows: torch.Tensor, sum_rows: Callable) -> Callable:
    """The layer, then an all-reduce of torch's over symmetric memory, where the layer writes."""

    def way(*arguments):
        output = arguments[-1]
        if len(output) == 0:
            return

        partial_output = rows[: len(output)]
        layer(*arguments[:-1], partial_output)

        group = dist.group.WORLD.group_name
        values = partial_output.view(-1)
        sums = output.view(-1)
        sum_rows(values, "sum", group, sums)

    return way

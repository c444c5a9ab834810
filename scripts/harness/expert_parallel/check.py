"""Whether both ways give the whole layer's output on every rank, and the same bits twice."""

from dataclasses import dataclass
from types import ModuleType

import torch
import torch.distributed as dist

from harness.evaluation.tolerances import Tolerance, matched_ratios
from harness.expert_parallel import exchange, gather
from harness.expert_parallel.forward import forward
from harness.expert_parallel.layer import Layer, Tokens, local_part, weights_of

WAYS = {"gather": gather, "exchange": exchange}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Rank:
    """What a rank computes with, by one way."""

    way: ModuleType
    layer: Layer
    run: object
    weights: list[torch.Tensor]
    first_expert: int

    def forward(self, tokens: Tokens, counts: list[int], dtype: torch.dtype, chunks: int = 1) -> torch.Tensor:
        held = self.run, self.weights, self.first_expert
        return forward(self.way, self.layer, tokens, counts, *held, dtype, chunks)


def rank_of(way: str, name: str, layer: Layer, rank: int, device: str) -> Rank:
    """name: a solution's, or REFERENCE. Raises UserError where the solution does not serve what the way calls."""
    module, first = WAYS[way], rank * layer.local
    run = local_part(name, layer, module.BEHIND_ROUTER)
    held = weights_of(layer, range(first, first + layer.local), device, gate_first=module.BEHIND_ROUTER)
    return Rank(module, layer, run, held, first)


def batches(ranks: int, each: int) -> dict[str, tuple[list[int], int | None]]:
    """What is checked: name -> tokens on each rank, and the rank whose experts alone are chosen."""
    uneven = [each * (rank + 1) // ranks for rank in range(ranks)]
    uneven[ranks // 2] = 0
    alone = [0] * (ranks - 1) + [each]
    return {
        "even": ([each] * ranks, None),
        "uneven, one rank without tokens": (uneven, None),
        "all tokens on the last rank, to the first": (alone, 0),
        "no token at all": ([0] * ranks, None),
    }


@dataclass(frozen=True)
class Checked:
    """matched: the lowest ratio on any rank. same: two calls gave the same bits on every rank."""

    matched: float
    same: bool

    def passed(self, tolerance: Tolerance) -> bool:
        return self.same and self.matched >= tolerance.ratio


def check(
    rank: Rank, tokens: Tokens, right: torch.Tensor, counts: list[int], tolerance: Tolerance, dtype: str, chunks: int
) -> Checked:
    """Over all ranks, each of which calls this. right: the whole layer's output for its tokens, see `expected`."""
    device = right.device
    first, second = (rank.forward(tokens, counts, DTYPES[dtype], chunks) for _ in range(2))
    matched = torch.tensor(matched_ratios(first, right)[tolerance.name], device=device)
    found = torch.stack([matched, torch.tensor(float(first.equal(second)), device=device)])
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return Checked(found[0].item(), bool(found[1].item()))

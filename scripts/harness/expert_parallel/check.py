"""Whether both ways give the whole layer's output on every rank, and the same bits twice."""

import torch
import torch.distributed as dist

from harness.judging.tolerances import Tolerance, matched_ratios
from harness.expert_parallel.forward import Rank, forward
from harness.expert_parallel.layer import Tokens

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


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


def check(
    rank: Rank, tokens: Tokens, right: torch.Tensor, counts: list[int], tolerance: Tolerance, dtype: str, chunks: int
) -> tuple[float, bool]:
    """The lowest matched ratio on any rank, and whether two calls gave the same bits on all, each of which calls this.

    right: the whole layer's output for its tokens, see `expected`.
    """
    device = right.device
    first, second = (forward(rank, tokens, counts, DTYPES[dtype], chunks) for _ in range(2))
    matched = torch.tensor(matched_ratios(first, right)[tolerance.name], device=device)
    found = torch.stack([matched, torch.tensor(float(first.equal(second)), device=device)])
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return found[0].item(), bool(found[1].item())

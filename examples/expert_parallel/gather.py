"""All-gather of every token to every rank, each rank's experts for all of them, reduce-scatter of the results.

What inference engines do by default. The host never waits, so a call can be a CUDA graph. Engines agree on the number
of tokens of each rank before a step; ranks with fewer than the most send zeros, which are dropped again.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from layer import Layer, Tokens
from rows import joined, parted

ROUTED = False  # the router is inside what a rank computes
AS_GRAPH = True


def padded(rows: torch.Tensor, most: int) -> torch.Tensor:
    return rows if len(rows) == most else torch.cat([rows, rows.new_zeros(most - len(rows), rows.shape[1])])


def forward(layer: Layer, experts: Callable, tokens: Tokens, counts: list[int], mark=lambda: None) -> torch.Tensor:
    """The whole layer's output for the rank's tokens, [T, H] bf16. Every rank calls it, also one without tokens.

    experts: what `local_experts` gives. counts: tokens of each rank. mark: called around dispatch, experts, combine.
    """
    most = max(counts)
    mark()
    mine = padded(joined(tokens.x, tokens.scale, tokens.logits), most)
    rows = mine.new_empty(len(counts) * most, mine.shape[1])
    if most:
        dist.all_gather_into_tensor(rows, mine)
        rows = torch.cat([part[:count] for part, count in zip(rows.split(most), counts, strict=True)])
    x, scale, logits = parted(rows, tokens.x, tokens.scale, tokens.logits)
    mark()
    part = experts(logits, tokens.bias, x, scale.t().contiguous())
    mark()
    if min(counts) < most:
        part = torch.cat([padded(rows, most) for rows in part.split(counts)])
    total = part.new_empty(most, part.shape[1])
    if most:
        dist.reduce_scatter_tensor(total, part)  # in bf16
    mark()
    return total[: len(tokens.x)]

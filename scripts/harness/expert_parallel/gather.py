"""All-gather of every token to every rank, each rank's experts for all of them, reduce-scatter of the parts.

What inference engines do by default. The number of tokens on each rank is known to all, as engines agree on it before a
step; ranks with fewer tokens than the most send zeros, which are dropped before anything is computed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from harness.expert_parallel.layer import Layer, Tokens, slices
from harness.expert_parallel.rows import joined, parted

BEHIND_ROUTER = False  # which form of a solution this way calls
HOST_WAITS = False  # so a call can be a CUDA graph


@dataclass
class Sent:
    """Tokens on their way: until `work` is done, `rows` may not be read."""

    work: dist.Work | None
    rows: torch.Tensor
    tokens: Tokens
    counts: list[int]


@dataclass
class Returned:
    work: dist.Work | None
    rows: torch.Tensor
    own: int


def padded(rows: torch.Tensor, most: int) -> torch.Tensor:
    return rows if len(rows) == most else torch.cat([rows, rows.new_zeros(most - len(rows), rows.shape[1])])


def dispatch(layer: Layer, tokens: Tokens, counts: list[int], chunks: int = 1) -> list[Sent]:
    """Every chunk, on its way. counts: tokens on each rank."""
    of_ranks = ([at.stop - at.start for at in slices(count, chunks)] for count in counts)
    of_chunks = zip(*of_ranks, strict=True)
    return [_sent(part, list(each)) for part, each in zip(tokens.parts(chunks), of_chunks, strict=True)]


def _sent(tokens: Tokens, counts: list[int]) -> Sent:
    mine = padded(joined(tokens.x, tokens.scale, tokens.logits), max(counts))
    rows = mine.new_empty(len(counts) * max(counts), mine.shape[1])
    work = dist.all_gather_into_tensor(rows, mine, async_op=True) if max(counts) else None
    return Sent(work, rows, tokens, counts)


def compute(sent: Sent, part: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The rank's part for all tokens, [sum of counts, H] bf16."""
    if sent.work:
        sent.work.wait()
    most, tokens = max(sent.counts), sent.tokens
    rows = sent.rows
    if min(sent.counts) < most:
        rows = torch.cat([rows[r * most : r * most + count] for r, count in enumerate(sent.counts)])
    x, scale, logits = parted(rows, tokens.x, tokens.scale, tokens.logits)
    return part(logits, tokens.bias, x, scale.t().contiguous())


def combine(sent: Sent, part: torch.Tensor, dtype: torch.dtype) -> Returned:
    """dtype: that the parts are summed in."""
    most, counts = max(sent.counts), sent.counts
    part = part.to(dtype)
    if min(counts) < most:
        part = torch.cat([padded(rows, most) for rows in part.split(counts)])
    rows = part.new_empty(most, part.shape[1])
    work = dist.reduce_scatter_tensor(rows, part, async_op=True) if most else None
    return Returned(work, rows, counts[dist.get_rank()])


def finish(returned: Returned) -> torch.Tensor:
    """The whole layer's output for the rank's own tokens, [T, H] bf16."""
    if returned.work:
        returned.work.wait()
    return returned.rows[: returned.own].to(torch.bfloat16)


def sent_bytes(sent: Sent, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes that this rank sends to others, there and back."""
    others = len(sent.counts) - 1
    there = max(sent.counts) * sent.rows.shape[1] * others
    return there, max(sent.counts) * sent.tokens.x.shape[1] * dtype.itemsize * others

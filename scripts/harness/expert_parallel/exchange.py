"""All-to-all of the tokens that a rank's experts were chosen for, the routed form on those, all-to-all back, sum.

A token goes to a rank once, however many of its experts are there, and comes back as one row, weighted and summed over
that rank's experts. How many rows come from where follows from the routing: the host waits for it once a call, for
all chunks together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.functional import embedding_bag

from harness.expert_parallel.layer import Layer, Tokens, slices
from harness.expert_parallel.rows import joined, parted

BEHIND_ROUTER = True  # which form of a solution this way calls
HOST_WAITS = True


@dataclass
class Sent:
    """Rows on their way. like: what a row is made of; sent, received: rows to and from each rank.

    order: rows that were sent, by token and then by rank; first: of each token, the place in `order`.
    """

    work: dist.Work
    rows: torch.Tensor
    like: tuple[torch.Tensor, ...]
    order: torch.Tensor
    first: torch.Tensor
    sent: list[int]
    received: list[int]


@dataclass
class Returned:
    work: dist.Work
    rows: torch.Tensor
    of: Sent


def dispatch(layer: Layer, tokens: Tokens, counts: list[int], chunks: int = 1) -> list[Sent]:
    """Every chunk, on its way. counts: tokens on each rank."""
    wanted = torch.zeros(len(tokens.ids), len(counts), dtype=torch.bool, device=tokens.ids.device)
    wanted.scatter_(1, tokens.ids.long() // layer.local, True)
    cut = slices(len(wanted), chunks)
    sent = torch.stack([wanted[at].sum(dim=0) for at in cut], dim=1)  # [ranks, chunks]
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    parts = tokens.x, tokens.scale, tokens.ids, tokens.weights
    rows = joined(*parts)
    numbers = torch.stack([sent, received]).permute(2, 0, 1).tolist()  # waits for the device, so nothing else here may
    return [_sent(rows[at], wanted[at], parts, *each) for at, each in zip(cut, numbers, strict=True)]


def _sent(
    rows: torch.Tensor, wanted: torch.Tensor, like: tuple[torch.Tensor, ...], sent: list[int], received: list[int]
) -> Sent:
    """wanted: [tokens, ranks], whether the token goes there."""
    token = wanted.t().nonzero_static(size=sum(sent))[:, 1]
    mine = rows[token]
    there = mine.new_empty(sum(received), mine.shape[1])
    work = dist.all_to_all_single(there, mine, received, sent, async_op=True)
    at = wanted.t().flatten().cumsum(dim=0).view(wanted.t().shape) - 1  # [ranks, tokens]: the place among those sent
    order = at[wanted.nonzero_static(size=sum(sent)).flip(1).unbind(dim=1)]
    number = wanted.sum(dim=1)
    return Sent(work, there, like, order, number.cumsum(dim=0) - number, sent, received)


def compute(sent: Sent, part: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The rank's part for the rows that it received, [rows, H] bf16."""
    sent.work.wait()
    return part(*parted(sent.rows, *sent.like))


def combine(sent: Sent, part: torch.Tensor, dtype: torch.dtype) -> Returned:
    """dtype: that parts are sent back in; they are summed in fp32."""
    rows = torch.empty(sum(sent.sent), part.shape[1], dtype=dtype, device=part.device)
    work = dist.all_to_all_single(rows, part.to(dtype), sent.sent, sent.received, async_op=True)
    return Returned(work, rows, sent)


def finish(returned: Returned) -> torch.Tensor:
    """The whole layer's output for the rank's own tokens, [T, H] bf16."""
    returned.work.wait()
    sent = returned.of
    if not len(returned.rows):
        return returned.rows.to(torch.bfloat16)
    # a sum in fp32 over each token's rows, in the order of the ranks, so it repeats to the bit
    return embedding_bag(sent.order, returned.rows, sent.first, mode="sum").to(torch.bfloat16)


def sent_bytes(sent: Sent, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes that this rank sends to others, there and back."""
    rank = dist.get_rank()
    there = (sum(sent.sent) - sent.sent[rank]) * sent.rows.shape[1]
    return there, (sum(sent.received) - sent.received[rank]) * sent.like[0].shape[1] * dtype.itemsize

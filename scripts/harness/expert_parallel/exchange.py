"""All-to-all of the tokens that a rank's experts were chosen for, the routed form on those, all-to-all back, sum.

A token goes to a rank once, however many of its experts are there, and comes back as one row, weighted and summed over
that rank's experts. How many rows come from where is known only after routing: the host waits for it once a call, for
all chunks together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from harness.expert_parallel.layer import Layer, Tokens, routed, slices
from harness.expert_parallel.rows import joined, parted

BEHIND_ROUTER = True  # which form of a solution this way calls
HOST_WAITS = True


@dataclass
class Sent:
    """Rows on their way. like: what a row is made of; own: this rank's tokens; token: of each row that it sent.

    sent, received: rows to and from each rank, in the order of `token` and of `rows`.
    """

    work: dist.Work
    rows: torch.Tensor
    like: tuple[torch.Tensor, ...]
    own: int
    token: torch.Tensor
    sent: list[int]
    received: list[int]


@dataclass
class Returned:
    work: dist.Work
    rows: torch.Tensor
    of: Sent


def dispatch(layer: Layer, tokens: Tokens, counts: list[int], chunks: int = 1) -> list[Sent]:
    """Every chunk, on its way. counts: tokens on each rank."""
    ids, weights = routed(layer, tokens)
    wanted = torch.zeros(len(ids), len(counts), dtype=torch.bool, device=ids.device)
    wanted.scatter_(1, ids.long() // layer.local, True)
    cut = slices(len(ids), chunks)
    sent = torch.stack([wanted[at].sum(dim=0) for at in cut], dim=1)  # [ranks, chunks]
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    numbers = torch.stack([sent, received]).permute(2, 0, 1).tolist()  # waits for the device, so nothing else here may
    parts = tokens.x, tokens.scale, ids, weights
    rows = joined(*parts)
    return [_sent(rows[at], wanted[at], parts, *each) for at, each in zip(cut, numbers, strict=True)]


def _sent(
    rows: torch.Tensor, wanted: torch.Tensor, like: tuple[torch.Tensor, ...], sent: list[int], received: list[int]
) -> Sent:
    """wanted: [tokens, ranks], whether the token goes there."""
    token = wanted.t().nonzero_static(size=sum(sent))[:, 1]
    mine = rows[token]
    there = mine.new_empty(sum(received), mine.shape[1])
    work = dist.all_to_all_single(there, mine, received, sent, async_op=True)
    return Sent(work, there, like, len(rows), token, sent, received)


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
    total = torch.zeros(sent.own, sent.like[0].shape[1], device=returned.rows.device)
    # one rank after the other: a token has one row of each, so nothing is added to an element in two orders
    for token, rows in zip(sent.token.split(sent.sent), returned.rows.split(sent.sent), strict=True):
        total.index_add_(0, token, rows.float())
    return total.to(torch.bfloat16)


def sent_bytes(sent: Sent, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes that this rank sends to others, there and back."""
    rank = dist.get_rank()
    there = (sum(sent.sent) - sent.sent[rank]) * sent.rows.shape[1]
    return there, (sum(sent.received) - sent.received[rank]) * sent.like[0].shape[1] * dtype.itemsize

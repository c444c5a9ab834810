"""Two ways to bring tokens to their experts and results back, in plain torch.distributed.

Each is a generator that all ranks run, also one without tokens. It pauses after dispatch and after
the experts, which are what `local_experts` gives; what it yields last is the whole layer's output
for the rank's tokens, [T, H] bf16.
"""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from layer import Tokens
from torch.nn.functional import embedding_bag, one_hot, pad


def gather(experts: Callable, tokens: Tokens) -> Iterator[torch.Tensor | None]:
    """All-gather of every token to every rank, each rank's experts for all of them, reduce-scatter
    of the results.

    What inference engines do by default. The router is inside what a rank computes. The host never
    waits, so a call can be a CUDA graph. Ranks with fewer tokens than the most send zeros, which
    are dropped again.
    """
    most = max(*tokens.counts, 1)  # so no collective is empty
    mine = joined(tokens.x, tokens.scale, tokens.logits)
    if len(mine) < most:
        mine = pad(mine, (0, 0, 0, most - len(mine)))
    rows = mine.new_empty(len(tokens.counts) * most, mine.shape[1])
    dist.all_gather_into_tensor(rows, mine)
    rows = torch.cat(
        [part[:count] for part, count in zip(rows.split(most), tokens.counts, strict=True)]
    )
    x, scale, logits = parted(rows, tokens.x, tokens.scale, tokens.logits)
    yield
    part = experts(logits, tokens.bias, x, scale.t().contiguous())
    yield
    if min(tokens.counts) < most:
        part = torch.cat(
            [pad(rows, (0, 0, 0, most - len(rows))) for rows in part.split(tokens.counts)]
        )
    total = part.new_empty(most, part.shape[1])
    dist.reduce_scatter_tensor(total, part)  # in bf16
    yield total[: len(tokens.x)]


def exchange(experts: Callable, tokens: Tokens) -> Iterator[torch.Tensor | None]:
    """All-to-all of the tokens that a rank's experts were chosen for, its experts on those,
    all-to-all back, sum.

    The router is before. A token goes to a rank once, however many of its experts are there, and
    comes back as one row, weighted and summed over them. The routing says how many rows come from
    where; the host waits for that once a call.
    """
    rank_of = tokens.ids.long() // (
        tokens.logits.shape[1] // len(tokens.counts)
    )  # of each chosen expert
    goes_to = one_hot(rank_of, len(tokens.counts)).any(dim=1).t()  # [ranks, T]
    to_each = goes_to.sum(dim=1)
    from_each = torch.empty_like(to_each)
    dist.all_to_all_single(from_each, to_each)
    rows = joined(tokens.x, tokens.scale, tokens.ids, tokens.weights)
    sent, received = torch.stack(
        [to_each, from_each]
    ).tolist()  # waits for the device, so nothing else here may
    token = goes_to.nonzero_static(size=sum(sent))[:, 1]  # of each row that is sent
    there = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(there, rows[token], received, sent)
    arrived = parted(there, tokens.x, tokens.scale, tokens.ids, tokens.weights)
    yield
    part = experts(*arrived)
    yield
    back = part.new_empty(sum(sent), part.shape[1])
    dist.all_to_all_single(back, part, sent, received)
    if len(
        back
        # each token's rows are added in fp32, in the order of the ranks: two calls give the same bits
    ):
        number = goes_to.sum(dim=0)
        back = embedding_bag(
            token.argsort(stable=True), back, number.cumsum(dim=0) - number, mode="sum"
        )
    yield back


def joined(*parts: torch.Tensor) -> torch.Tensor:
    """[T, bytes] uint8 of contiguous parts [T, n] of any dtype, so that one collective carries
    them.
    """
    return torch.cat([part.view(torch.uint8) for part in parts], dim=1)


def parted(rows: torch.Tensor, *like: torch.Tensor) -> list[torch.Tensor]:
    """The parts again, contiguous and aligned, with the widths and dtypes of `like`."""
    widths = [part.shape[1] * part.element_size() for part in like]
    copies = [
        part.clone(memory_format=torch.contiguous_format) for part in rows.split(widths, dim=1)
    ]
    return [copy.view(part.dtype) for copy, part in zip(copies, like, strict=True)]

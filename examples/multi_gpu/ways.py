"""Two ways to bring tokens to their experts and results back, in plain torch.distributed.

Each is a generator that all ranks run, also one without tokens. It pauses after dispatch and after
the experts, which are what `local_experts` returns; what it yields last is the whole layer's output
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
    x, scale, logits = gathered(tokens, most)
    yield

    scale_by_block = scale.t().contiguous()
    results = experts(logits, tokens.bias, x, scale_by_block)
    yield

    total = reduced(results, tokens.counts, most)
    yield total[: len(tokens.x)]


def gathered(tokens: Tokens, most: int) -> list[torch.Tensor]:
    """Return x, scale and logits of all ranks' tokens, in the order of the ranks.

    most: the tokens of the rank that has most.
    """
    parts = (tokens.x, tokens.scale, tokens.logits)
    sent = padded(joined(*parts), most)
    ranks = len(tokens.counts)
    gathered_rows = sent.new_empty(ranks * most, sent.shape[1])
    dist.all_gather_into_tensor(gathered_rows, sent)

    rows_of_ranks = gathered_rows.split(most)
    rows = []
    for rows_of_rank, count in zip(rows_of_ranks, tokens.counts, strict=True):
        rows.append(rows_of_rank[:count])
    return parted(torch.cat(rows), *parts)


def reduced(results: torch.Tensor, counts: list[int], most: int) -> torch.Tensor:
    """Return the sum over the ranks, in bf16, of their results for this rank's tokens, [most, H].

    results: of all ranks' tokens, in the order of the ranks.
    """
    if min(counts) < most:
        padded_results = []
        for results_of_rank in results.split(counts):
            padded_results.append(padded(results_of_rank, most))
        results = torch.cat(padded_results)

    total = results.new_empty(most, results.shape[1])
    dist.reduce_scatter_tensor(total, results)
    return total


def exchange(experts: Callable, tokens: Tokens) -> Iterator[torch.Tensor | None]:
    """All-to-all of the tokens that a rank's experts were chosen for, its experts on those,
    all-to-all back, sum.

    The router is before. A token goes to a rank once, however many of its experts are there, and
    comes back as one row, weighted and summed over them. The routing says how many rows come from
    where; the host waits for that once a call.
    """
    goes_to = destinations(tokens)
    to_each = goes_to.sum(dim=1)
    from_each = torch.empty_like(to_each)
    dist.all_to_all_single(from_each, to_each)
    rows = joined(*tokens.routed_inputs)
    # This waits for the device, so nothing else here may.
    both_counts = torch.stack([to_each, from_each])
    sent, received = both_counts.tolist()

    token = goes_to.nonzero_static(size=sum(sent))[:, 1]  # of each row that is sent
    arrived = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(arrived, rows[token], received, sent)
    inputs = parted(arrived, *tokens.routed_inputs)
    yield

    results = experts(*inputs)
    yield

    returned = results.new_empty(sum(sent), results.shape[1])
    dist.all_to_all_single(returned, results, sent, received)
    yield summed(returned, token, goes_to)


def destinations(tokens: Tokens) -> torch.Tensor:
    """Return which tokens go to which rank, [ranks, T] bool."""
    ranks = len(tokens.counts)
    experts_of_a_rank = tokens.logits.shape[1] // ranks
    rank = tokens.ids.long() // experts_of_a_rank  # of each chosen expert
    return one_hot(rank, ranks).any(dim=1).t()


def summed(
    rows: torch.Tensor, token: torch.Tensor, goes_to: torch.Tensor
) -> torch.Tensor:
    """Return the sum of each token's rows, in fp32 and in the order of the ranks.

    So two calls give the same bits. token: of each row.
    """
    if len(rows) == 0:
        return rows
    counts = goes_to.sum(dim=0)
    first_row = counts.cumsum(dim=0) - counts
    return embedding_bag(token.argsort(stable=True), rows, first_row, mode="sum")


def padded(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Return the rows with zeros behind them, so many in all."""
    return pad(rows, (0, 0, 0, length - len(rows)))


def joined(*parts: torch.Tensor) -> torch.Tensor:
    """Return contiguous parts [T, n] of any dtype side by side, [T, bytes] uint8.

    So one collective carries them.
    """
    parts_as_bytes = [part.view(torch.uint8) for part in parts]
    return torch.cat(parts_as_bytes, dim=1)


def parted(rows: torch.Tensor, *like: torch.Tensor) -> list[torch.Tensor]:
    """Return the parts again, contiguous and aligned, with the widths and dtypes of `like`."""
    widths = [part.shape[1] * part.element_size() for part in like]
    columns_of_parts = rows.split(widths, dim=1)

    parts = []
    for columns, part in zip(columns_of_parts, like, strict=True):
        copy = columns.clone(memory_format=torch.contiguous_format)
        parts.append(copy.view(part.dtype))
    return parts

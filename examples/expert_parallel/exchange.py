"""All-to-all of the tokens that a rank's experts were chosen for, its experts on those, all-to-all back, sum.

A token goes to a rank once, however many of its experts are there, and comes back as one row, weighted and summed over
them. The routing says how many rows come from where; the host waits for that once a call.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from layer import Layer, Tokens
from rows import joined, parted
from torch.nn.functional import embedding_bag

ROUTED = True  # experts and their weights are chosen before
AS_GRAPH = False


def forward(layer: Layer, experts: Callable, tokens: Tokens, counts: list[int], mark=lambda: None) -> torch.Tensor:
    """As gather.forward."""
    mark()
    goes_to = torch.zeros(len(tokens.ids), len(counts), dtype=torch.bool, device=tokens.ids.device)
    goes_to.scatter_(1, tokens.ids.long() // layer.local, True)
    to_each = goes_to.sum(dim=0)
    from_each = torch.empty_like(to_each)
    dist.all_to_all_single(from_each, to_each)
    rows = joined(tokens.x, tokens.scale, tokens.ids, tokens.weights)
    sent, received = torch.stack([to_each, from_each]).tolist()  # waits for the device, so nothing else here may
    there = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(there, rows[goes_to.t().nonzero_static(size=sum(sent))[:, 1]], received, sent)
    arrived = parted(there, tokens.x, tokens.scale, tokens.ids, tokens.weights)
    mark()
    part = experts(*arrived)
    mark()
    back = part.new_empty(sum(sent), part.shape[1])
    dist.all_to_all_single(back, part, sent, received)
    if len(back):  # each token's rows are added in fp32, in the order of the ranks: two calls give the same bits
        place = goes_to.t().flatten().cumsum(dim=0).view(goes_to.t().shape) - 1  # [ranks, T]: a token's row in `back`
        order = place[goes_to.nonzero_static(size=sum(sent)).flip(1).unbind(dim=1)]  # by token, then by rank
        number = goes_to.sum(dim=1)
        back = embedding_bag(order, back, number.cumsum(dim=0) - number, mode="sum")
    mark()
    return back

"""A layer's call on this rank, by either way; in chunks of tokens, whose exchange the products of others hide."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.expert_parallel import exchange, gather
from harness.expert_parallel.layer import Layer, Tokens
from harness.expert_parallel.local_part import local_part

WAYS = {"gather": gather, "exchange": exchange}


@dataclass(frozen=True)
class Rank:
    """way: one of WAYS. part: the rank's experts, as `local_part` gives them."""

    way: str
    layer: Layer
    part: Callable[..., torch.Tensor]


def rank_of(way: str, name: str, layer: Layer, rank: int, device: str) -> Rank:
    """name, and what is raised: as `local_part` has them."""
    return Rank(way, layer, local_part(name, layer, rank, device, WAYS[way].BEHIND_ROUTER))


def forward(rank: Rank, tokens: Tokens, counts: list[int], dtype: torch.dtype, chunks: int = 1) -> torch.Tensor:
    """The whole layer's output for the rank's tokens, [T, H] bf16.

    counts: tokens on each rank. dtype: of the parts that are sent back. Every rank has to call this, also one without
    tokens.
    """
    way = WAYS[rank.way]
    sent = way.dispatch(rank.layer, tokens, counts, chunks)
    returned = [way.combine(each, way.compute(each, rank.part), dtype) for each in sent]
    return torch.cat([way.finish(each) for each in returned])

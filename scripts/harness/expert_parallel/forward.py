"""A layer's call on this rank, by either way; in chunks of tokens, whose exchange the products of others hide."""

from types import ModuleType

import torch

from harness.expert_parallel.layer import Layer, Tokens


def slices(count: int, chunks: int) -> list[slice]:
    """Nearly equal parts of so many tokens."""
    ends = [count * at // chunks for at in range(chunks + 1)]
    return [slice(*pair) for pair in zip(ends, ends[1:], strict=False)]


def forward(
    way: ModuleType,
    layer: Layer,
    tokens: Tokens,
    counts: list[int],
    run,
    weights: list[torch.Tensor],
    first_expert: int,
    dtype: torch.dtype = torch.bfloat16,
    chunks: int = 1,
) -> torch.Tensor:
    """The whole layer's output for the rank's tokens, [T, H] bf16.

    way: gather or exchange. counts: tokens on each rank. run, weights, first_expert: the rank's experts, in the form
    that the way calls. dtype: of the parts that are sent back. Every rank has to call this, also one without tokens.
    """
    of_each = list(zip(*(slices(count, chunks) for count in counts), strict=True))
    own = slices(len(tokens.x), chunks)
    sent = [
        way.dispatch(layer, tokens.part(mine), [piece.stop - piece.start for piece in each])
        for mine, each in zip(own, of_each, strict=True)
    ]
    returned = [way.combine(each, way.compute(each, run, weights, first_expert), dtype) for each in sent]
    return torch.cat([way.finish(each) for each in returned])

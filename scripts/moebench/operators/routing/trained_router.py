"""Router outputs that look like a trained router's, since recordings cannot be shipped.

An expert has a popularity of its own, another one in each workload, and a token adds noise to it;
the bias takes back most of what popularity does to the selection, as training does. One rank's
share of a draw varies, and its active experts decide the roofline bound, so `draw_typical` takes
the first draw near the expected counts. A token whose experts are chosen by less than `MARGIN` is
drawn again: what rounds differently would choose others for it.

`sizes` are a layer's in the catalogue. A bias of None, as with renorm routing, stands for routing
by the logits themselves, which are exact in bfloat16 then.
"""

import itertools
import math
from collections.abc import Iterable

import numpy as np
import torch

from moebench.operators.layers import Sizes, expert_ranks, routed_experts
from moebench.operators.roofline import Counts
from moebench.operators.routing.numbers import exponential, normal, normalised, sigmoid

MARGIN = 1e-5  # fp32 sigmoid and addition err by about 2e-7, fast exponentials by 1e-6

POPULARITY = 0.4  # deviation of an expert's offset, in logits
BALANCE = 0.9  # share of a popularity's effect on the score that the bias takes back
SLOPE = 0.15  # of the sigmoid where chosen experts lie
CENTRE = -0.5  # most experts score below one half


def margin(logits: np.ndarray, bias: np.ndarray | None, sizes: Sizes) -> np.ndarray:
    """Return float64 [T]: by how much a token's last chosen group or expert is ahead of the first
    that is not chosen.
    """
    scores = selection_scores(logits, bias)
    gap = gap_behind(candidates(scores, sizes), sizes["top_k"])

    kept = sizes["kept_groups"]
    if kept < sizes["num_groups"]:
        gap_of_groups = gap_behind(group_scores(scores, sizes), kept)
        gap = np.minimum(gap, gap_of_groups)
    return gap


def gap_behind(scores: np.ndarray, count: int) -> np.ndarray:
    """Return by how much each row's `count` best are ahead of the others."""
    ranked = np.sort(scores, axis=1)
    return ranked[:, -count] - ranked[:, -count - 1]


def selection_scores(logits: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Return what experts are chosen by, float64 [T, num_experts]."""
    logits = logits.astype(np.float64)
    if bias is None:
        return logits
    return sigmoid(logits) + bias.astype(np.float64)


def in_groups(scores: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return [T, num_groups, experts of a group]."""
    groups = sizes["num_groups"]
    tokens, experts = scores.shape
    return scores.reshape(tokens, groups, experts // groups)


def group_scores(scores: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return [T, num_groups]: the sum of each group's best two."""
    ranked = np.sort(in_groups(scores, sizes), axis=2)
    return ranked[:, :, -2:].sum(axis=2)


def candidates(scores: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return selection scores with the experts of closed groups at -inf."""
    closed = sizes["num_groups"] - sizes["kept_groups"]
    if not closed:
        return scores
    worst_first = np.argsort(group_scores(scores, sizes), axis=1)
    opened = in_groups(scores, sizes).copy()
    np.put_along_axis(opened, worst_first[:, :closed, None], -np.inf, axis=1)
    return opened.reshape(scores.shape)


def select(logits: np.ndarray, bias: np.ndarray | None, sizes: Sizes) -> np.ndarray:
    """Return the experts of each token, int64 [T, top_k], in no particular order."""
    scores = candidates(selection_scores(logits, bias), sizes)
    top_k = sizes["top_k"]
    return np.argpartition(scores, -top_k, axis=1)[:, -top_k:]


def route(
    logits: np.ndarray, bias: np.ndarray | None, sizes: Sizes
) -> tuple[np.ndarray, np.ndarray]:
    """Return a router's answer, the best expert first: ids int32 and weights float32, both [T,
    top_k].

    With a bias the weights are the chosen scores, normalised, times the layer's scaling factor;
    without, a softmax over the chosen logits. Exactly rounded operations in one order alone, so the
    same to the last bit everywhere.
    """
    scores = candidates(selection_scores(logits, bias), sizes)
    ids = np.argsort(-scores, axis=1, kind="stable")[:, : sizes["top_k"]]
    values = np.take_along_axis(logits.astype(np.float64), ids, axis=1)

    if bias is None:
        weights = normalised(exponential(values - values[:, :1]))
    else:
        weights = normalised(sigmoid(values)) * sizes["routed_scaling_factor"]
    return ids.astype(np.int32), weights.astype(np.float32)


def experts(seed: str, sizes: Sizes, spread: float = 1) -> tuple[np.ndarray, np.ndarray | None]:
    """Return what an expert adds to every token's noise, float64 [num_experts], and its bias,
    float32, exact in bfloat16.

    With renorm routing the bias is None, and what it would leave of an expert's popularity is all
    that there is.
    """
    shape = (sizes["num_experts"],)
    popular = normal(f"{seed}/popularity", shape)
    wobble = normal(f"{seed}/bias", shape)
    if sizes["routing"] == "renorm":
        left = spread * (1 - BALANCE) * POPULARITY * popular
        return left + spread * 0.02 / SLOPE * wobble, None

    popularity = spread * POPULARITY * popular
    bias = 0.02 * (spread * wobble)
    bias -= BALANCE * SLOPE * popularity
    return popularity + CENTRE, exact_in_bfloat16(bias)


def exact_in_bfloat16(values: np.ndarray) -> np.ndarray:
    """Return values rounded to float32 and then to bfloat16, as float32."""
    return torch.from_numpy(values).float().bfloat16().float().numpy()


def draw(
    seed: str, num_tokens: int, raised: dict[int, float], sizes: Sizes, spread: float = 1
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return logits [T, num_experts] float32 and bias [num_experts] float32 that is exact in
    bfloat16; no choice is narrow.

    raised: logits to add to an expert's popularity without the bias taking them back. spread: how
    far experts and their biases differ; at 0 all experts are alike and the bias is zero. With
    renorm routing: logits that are exact in bfloat16, and None.
    """
    offset, bias = experts(seed, sizes, spread)
    for expert, logit in raised.items():
        offset[expert] += logit

    num_experts = len(offset)
    logits = np.empty((num_tokens, num_experts), dtype=np.float32)
    unclear = np.arange(num_tokens)
    for attempt in itertools.count():
        noise = normal(f"{seed}/noise/{attempt}", (len(unclear), num_experts))
        drawn = noise + offset
        drawn = exact_in_bfloat16(drawn) if bias is None else drawn.astype(np.float32)
        logits[unclear] = drawn

        is_narrow = margin(drawn, bias, sizes) < MARGIN
        unclear = unclear[is_narrow]
        if not len(unclear):
            return logits, bias


def raised_alone(chosen: Iterable[int], num_experts: int, others: float = -3.0) -> dict[int, float]:
    """Return logits to add so that the chosen experts are far ahead of all others."""
    return dict.fromkeys(range(num_experts), others) | dict.fromkeys(chosen, 9.0)


def as_inputs(logits: np.ndarray, bias: np.ndarray | None) -> dict[str, torch.Tensor]:
    """Return the definitions' inputs: routing_logits float32 and routing_bias bfloat16, or bfloat16
    logits alone.
    """
    drawn = torch.from_numpy(logits)
    if bias is None:
        return {"routing_logits": drawn.bfloat16()}
    return {"routing_logits": drawn, "routing_bias": torch.from_numpy(bias).bfloat16()}


def local_counts(chosen: np.ndarray, sizes: Sizes) -> Counts:
    """Return the counts of a rank, without shared experts.

    chosen [T, top_k]: experts counted from the rank's first one; others are another rank's.
    """
    return counts_below(routed_experts(sizes), chosen)


def counts_below(num_local_experts: int, chosen: np.ndarray) -> Counts:
    """Return the counts of the experts from 0 up to so many."""
    local = (chosen >= 0) & (chosen < num_local_experts)
    return Counts(
        rows=int(local.sum()),
        tokens=int(local.any(axis=1).sum()),
        active=len(np.unique(chosen[local])),
    )


def counts_with_shared(chosen: np.ndarray, rank: int, sizes: Sizes) -> Counts:
    """Return the counts of a rank, with the shared experts of the tokens that take them there.
    chosen: as of `local_counts`.
    """
    num_routed = routed_experts(sizes)
    num_local = sizes["num_local_experts"]
    local = np.where(chosen < num_routed, chosen, -1)

    here = np.arange(len(chosen)) % expert_ranks(sizes) == rank
    shared = np.arange(num_routed, num_local)
    shared = np.where(here[:, None], shared, -1)
    return counts_below(num_local, np.concatenate([local, shared], axis=1))


def is_typical(num_tokens: int, rows: int, active: int, sizes: Sizes) -> bool:
    """Whether rows are within 10% of their average or 2, and active experts within 5% of theirs,
    rounded, or 1.

    A rank with a share s of the experts gets top_k * s rows of a token on average. A single token
    only needs a row: without one there is nothing to measure.
    """
    if num_tokens == 1:
        return rows >= 1

    local = routed_experts(sizes)
    average = num_tokens * sizes["top_k"] * local / sizes["num_experts"]
    expected = round(local * (1 - math.exp(-average / local)))
    if abs(active - expected) > max(1, 0.05 * expected):
        return False
    return abs(rows - average) <= max(2, 0.1 * average)


def draw_typical(
    seed: str, num_tokens: int, offset: int, sizes: Sizes
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a `draw` that is typical for the rank of this offset.

    It takes some attempts: ten or so near T = 50.
    """
    for attempt in itertools.count():
        logits, bias = draw(f"{seed}/{attempt}", num_tokens, {}, sizes)
        chosen = select(logits, bias, sizes)
        counts = local_counts(chosen - offset, sizes)
        if is_typical(num_tokens, counts.rows, counts.active, sizes):
            return logits, bias

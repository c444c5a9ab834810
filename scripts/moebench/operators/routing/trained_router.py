"""Draw router outputs (logits and bias) that look like a trained router's, as recordings of models
cannot be shipped.

A token's logit of an expert is the expert's popularity plus noise. Popularities differ from
workload to workload. The bias takes most of a popularity's effect on the choice back, as training
does. A token whose last chosen expert is ahead by less than MARGIN is drawn again: a solution that
rounds otherwise would choose another one.

How many experts of a rank are active decides the roofline bound, and differs from draw to draw; so
`draw_typical` takes the first draw that is near the average.

The operators of fp8/ draw workloads with `draw_typical`, or with `draw` where experts are forced;
`route` then chooses for the forms with top-k given. `sizes` are a layer's, as its router has them
(catalogue.router_sizes).
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from moebench.operators.layers import Sizes, expert_ranks, routed_experts
from moebench.operators.operator import Tensors
from moebench.operators.roofline import Counts
from moebench.operators.routing.numbers import exponential, normal, normalised, sigmoid

MARGIN = 1e-5  # fp32 sigmoid and addition err by about 2e-7, fast exponentials by 1e-6

POPULARITY = 0.4  # standard deviation of experts' popularities, in logits
BALANCE = 0.9  # share of a popularity's effect on the score that the bias takes back
SLOPE = 0.15  # of the sigmoid, where the logits of chosen experts lie
CENTRE = -0.5  # mean logit: most experts score below one half

AddedLogits = dict[int, float]  # expert -> what is added to every token's logit of it


@dataclass(frozen=True)
class RouterOutputs:
    """What experts are chosen by.

    logits: [T, num_experts] float32. bias: [num_experts] float32, exact in bfloat16. With softmax
    routing ("renorm") the bias is None and the logits are exact in bfloat16.
    """

    logits: np.ndarray
    bias: np.ndarray | None

    @classmethod
    def of_inputs(cls, inputs: Tensors) -> "RouterOutputs":
        """Return them from a definition's inputs."""
        bias = None
        if "routing_bias" in inputs:
            bias = inputs["routing_bias"].float().numpy()
        return cls(inputs["routing_logits"].float().numpy(), bias)

    def as_inputs(self) -> Tensors:
        """Return them as a definition's inputs: routing_logits float32 and routing_bias bfloat16,
        or routing_logits bfloat16 alone.
        """
        logits = torch.from_numpy(self.logits)
        if self.bias is None:
            return {"routing_logits": logits.bfloat16()}
        bias = torch.from_numpy(self.bias).bfloat16()
        return {"routing_logits": logits, "routing_bias": bias}

    def scores(self) -> np.ndarray:
        """Return what experts are chosen by, float64 [T, num_experts]."""
        logits = self.logits.astype(np.float64)
        if self.bias is None:
            return logits
        return sigmoid(logits) + self.bias.astype(np.float64)


def draw_typical(
    seed: str, num_tokens: int, offset: int, sizes: Sizes
) -> RouterOutputs:
    """Return the first `draw` that is typical for the rank whose first expert is `offset`.

    It takes some attempts, ten or so near T = 50.
    """
    for attempt in itertools.count():
        outputs = draw(f"{seed}/{attempt}", num_tokens, {}, sizes)
        chosen = select(outputs, sizes)
        counts = local_counts(chosen - offset, routed_experts(sizes))
        if is_typical(num_tokens, counts, sizes):
            return outputs


def is_typical(num_tokens: int, counts: Counts, sizes: Sizes) -> bool:
    """Whether a rank's counts are near their average: rows within 10% or 2, active experts within
    5% or 1.

    On average a token has top_k * share rows on a rank with that share of the experts. A single
    token needs no more than a row: without one there is nothing to measure.
    """
    if num_tokens == 1:
        return counts.rows >= 1

    local = routed_experts(sizes)
    mean_rows = num_tokens * sizes["top_k"] * local / sizes["num_experts"]
    mean_active = round(local * (1 - math.exp(-mean_rows / local)))
    if abs(counts.active - mean_active) > max(1, 0.05 * mean_active):
        return False
    return abs(counts.rows - mean_rows) <= max(2, 0.1 * mean_rows)


def draw(
    seed: str,
    num_tokens: int,
    added_logits: AddedLogits,
    sizes: Sizes,
    spread: float = 1,
) -> RouterOutputs:
    """Return router outputs in which no token's choice is narrow.

    added_logits: expert -> what is added to every token's logit of it, which the bias does not take
    back. spread: as of `mean_logits_and_bias`.
    """
    mean_logits, bias = mean_logits_and_bias(seed, sizes, spread)
    for expert, logit in added_logits.items():
        mean_logits[expert] += logit

    num_experts = len(mean_logits)
    logits = np.empty((num_tokens, num_experts), dtype=np.float32)
    unclear = np.arange(num_tokens)
    for attempt in itertools.count():
        drawn = normal(f"{seed}/noise/{attempt}", (len(unclear), num_experts))
        drawn += mean_logits
        drawn = exact_in_bfloat16(drawn) if bias is None else drawn.astype(np.float32)
        logits[unclear] = drawn

        is_narrow = margin(RouterOutputs(drawn, bias), sizes) < MARGIN
        unclear = unclear[is_narrow]
        if not len(unclear):
            return RouterOutputs(logits, bias)


def mean_logits_and_bias(
    seed: str, sizes: Sizes, spread: float = 1
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return each expert's mean logit, float64 [num_experts], and bias, float32, exact in bfloat16.

    spread: 1 for trained experts, 0 for experts that are all alike. With softmax routing the bias
    is None, and an expert's popularity is what a bias would have left of it.
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


def logits_choosing(
    chosen: Iterable[int], num_experts: int, others: float = -3.0
) -> AddedLogits:
    """Return expert -> logit to add (as `draw` takes them) with which every token chooses these."""
    return dict.fromkeys(range(num_experts), others) | dict.fromkeys(chosen, 9.0)


def select(outputs: RouterOutputs, sizes: Sizes) -> np.ndarray:
    """Return the experts of each token, int64 [T, top_k], in no particular order."""
    scores = candidates(outputs.scores(), sizes)
    best_last = np.argpartition(scores, -sizes["top_k"], axis=1)
    return best_last[:, -sizes["top_k"] :]


def route(outputs: RouterOutputs, sizes: Sizes) -> Tensors:
    """Return topk_ids int32 and topk_weights float32, both [T, top_k], the best expert first.

    With a bias the weights are the chosen scores, normalised, times the layer's scaling factor;
    without one, a softmax over the chosen logits. They are the same to the last bit everywhere, as
    all operations are exactly rounded and in a fixed order.
    """
    scores = candidates(outputs.scores(), sizes)
    best_first = np.argsort(-scores, axis=1, kind="stable")
    ids = best_first[:, : sizes["top_k"]]

    chosen = np.take_along_axis(outputs.logits, ids, axis=1).astype(np.float64)
    if outputs.bias is None:
        weights = normalised(exponential(chosen - chosen[:, :1]))
    else:
        weights = normalised(sigmoid(chosen)) * sizes["routed_scaling_factor"]
    return {
        "topk_ids": torch.from_numpy(ids).int(),
        "topk_weights": torch.from_numpy(weights).float(),
    }


def margin(outputs: RouterOutputs, sizes: Sizes) -> np.ndarray:
    """Return by how much each token's last chosen expert is ahead of the first that is not chosen,
    or its last open group of the first closed one, if that is less; float64 [T].
    """
    scores = outputs.scores()
    gap = gap_behind(candidates(scores, sizes), sizes["top_k"])

    kept = sizes["kept_groups"]
    if kept < sizes["num_groups"]:
        gap_of_groups = gap_behind(group_scores(scores, sizes), kept)
        gap = np.minimum(gap, gap_of_groups)
    return gap


def gap_behind(scores: np.ndarray, count: int) -> np.ndarray:
    """Return by how much the `count` best of each row are ahead of the others, [T]."""
    ranked = np.sort(scores, axis=1)
    last_best = ranked[:, -count]
    first_other = ranked[:, -count - 1]
    return last_best - first_other


def candidates(scores: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return scores [T, num_experts] with the experts of closed groups at -inf."""
    closed = sizes["num_groups"] - sizes["kept_groups"]
    if not closed:
        return scores

    worst_first = np.argsort(group_scores(scores, sizes), axis=1)
    worst = worst_first[:, :closed, None]
    grouped = in_groups(scores, sizes).copy()
    np.put_along_axis(grouped, worst, -np.inf, axis=1)
    return grouped.reshape(scores.shape)


def group_scores(scores: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return the score of each group, the sum of its best two experts', [T, num_groups]."""
    ranked = np.sort(in_groups(scores, sizes), axis=2)
    return ranked[:, :, -2:].sum(axis=2)


def in_groups(scores: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return scores [T, num_experts] as [T, num_groups, experts of a group]."""
    tokens, experts = scores.shape
    groups = sizes["num_groups"]
    return scores.reshape(tokens, groups, experts // groups)


def counts_with_shared(chosen: np.ndarray, rank: int, sizes: Sizes) -> Counts:
    """Return the counts of a rank, with its shared experts: token t takes them on rank t % ranks.

    chosen: as of `local_counts`.
    """
    num_routed = routed_experts(sizes)
    num_local = sizes["num_local_experts"]
    local = np.where(chosen < num_routed, chosen, -1)

    is_taken_here = np.arange(len(chosen)) % expert_ranks(sizes) == rank
    shared = np.arange(num_routed, num_local)
    shared = np.where(is_taken_here[:, None], shared, -1)
    return local_counts(np.concatenate([local, shared], axis=1), num_local)


def local_counts(chosen: np.ndarray, num_local_experts: int) -> Counts:
    """Return the counts of a rank's first experts, so many of them.

    chosen: [T, top_k], experts counted from the rank's first one; those below 0 and beyond its last
    are other ranks'.
    """
    is_local = (chosen >= 0) & (chosen < num_local_experts)
    has_local = is_local.any(axis=1)
    active = np.unique(chosen[is_local])
    return Counts(
        rows=int(is_local.sum()), tokens=int(has_local.sum()), active=len(active)
    )

"""Router outputs that look like a trained router's, since recordings cannot be shipped.

An expert has a popularity of its own and a token adds noise to it; the bias takes back most of what popularity does to
the selection, as training does. Popularity belongs to a workload, not to the definition: the public recordings come
from different layers, each with its own router and bias.

One rank's share of a draw varies: its 32 experts may happen to be popular together, which gives it a fifth more rows,
or half as many active experts again. The public workloads stand for what a rank sees on average, and the number of
active experts decides their roofline bound, so `draw_typical` takes the first draw near the expected counts.

A token whose experts are chosen by less than `MARGIN` is drawn again: implementations that round differently would
choose other experts for it, and their outputs could not be compared.
"""

import itertools
import math

import numpy as np
import torch

from definitions.moe_fp8_block_scale import KEPT_GROUPS, NUM_EXPERTS, NUM_GROUPS, NUM_LOCAL_EXPERTS, TOP_K
from harness.operators import exact_random

MARGIN = 1e-5  # fp32 sigmoid and addition err by about 2e-7, fast exponentials by 1e-6

POPULARITY = 0.4  # deviation of an expert's offset, in logits
BALANCE = 0.9  # share of a popularity's effect on the score that the bias takes back
SLOPE = 0.15  # of the sigmoid where chosen experts lie
CENTRE = -0.5  # most experts score below one half


def margin(logits: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The smaller gap in selection score, 4th to 5th group or 8th to 9th expert, of each token; float64 [T]."""
    biased = biased_scores(logits, bias)
    groups = np.sort(biased.reshape(-1, NUM_GROUPS, NUM_EXPERTS // NUM_GROUPS), axis=2)
    ranked = np.sort(groups[:, :, -1] + groups[:, :, -2], axis=1)
    group_gap = ranked[:, -KEPT_GROUPS] - ranked[:, -KEPT_GROUPS - 1]
    open_scores = np.sort(candidates(biased), axis=1)
    return np.minimum(group_gap, open_scores[:, -TOP_K] - open_scores[:, -TOP_K - 1])


def biased_scores(logits: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Selection scores, float64 [T, 256]."""
    return exact_random.sigmoid(logits.astype(np.float64)) + bias.astype(np.float64)


def candidates(biased: np.ndarray) -> np.ndarray:
    """Selection scores with the experts of closed groups at -inf."""
    groups = biased.reshape(-1, NUM_GROUPS, NUM_EXPERTS // NUM_GROUPS)
    best = np.sort(groups, axis=2)[:, :, -2:].sum(axis=2)
    closed = np.argsort(np.argsort(best, axis=1), axis=1) < NUM_GROUPS - KEPT_GROUPS
    return np.where(closed[:, :, None], -np.inf, groups).reshape(-1, NUM_EXPERTS)


def select(logits: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The 8 experts of each token, int64 [T, 8], in no particular order."""
    return np.argsort(candidates(biased_scores(logits, bias)), axis=1)[:, -TOP_K:]


def draw(seed: str, num_tokens: int, raised: dict[int, float], spread: float = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return logits [T, 256] float32 and bias [256] float32 that is exact in bfloat16.

    raised: logits to add to an expert's popularity without the bias taking them back.
    spread: how far experts and their biases differ; at 0 all experts are alike and the bias is zero.
    """
    popularity = spread * POPULARITY * exact_random.normal(f"{seed}/popularity", (NUM_EXPERTS,))
    wobble = spread * exact_random.normal(f"{seed}/bias", (NUM_EXPERTS,))
    exact = (0.02 * wobble - BALANCE * SLOPE * popularity).astype(np.float32)
    bias = torch.from_numpy(exact).bfloat16().float().numpy()
    offset = popularity + CENTRE
    for expert, logit in raised.items():
        offset[expert] += logit

    logits = np.empty((num_tokens, NUM_EXPERTS), dtype=np.float32)
    unclear = np.arange(num_tokens)
    attempt = 0
    while len(unclear):
        noise = exact_random.normal(f"{seed}/noise/{attempt}", (len(unclear), NUM_EXPERTS))
        logits[unclear] = (noise + offset).astype(np.float32)
        unclear = unclear[margin(logits[unclear], bias) < MARGIN]
        attempt += 1
    return logits, bias


def counts(logits: np.ndarray, bias: np.ndarray, offset: int) -> tuple[int, int]:
    """(rows, active experts) of the rank whose first expert is `offset`."""
    chosen = select(logits, bias) - offset
    local = chosen[(chosen >= 0) & (chosen < NUM_LOCAL_EXPERTS)]
    return len(local), len(np.unique(local))


def is_typical(num_tokens: int, rows: int, active: int) -> bool:
    """Rows within 10% of T or 2; active experts within 5% of 32 * (1 - exp(-T / 32)), rounded, or 1.

    A single token only needs a row: without one there is nothing to measure.
    """
    if num_tokens == 1:
        return rows >= 1
    expected = round(NUM_LOCAL_EXPERTS * (1 - math.exp(-num_tokens / NUM_LOCAL_EXPERTS)))
    near = abs(active - expected) <= max(1, 0.05 * expected)
    return near and abs(rows - num_tokens) <= max(2, 0.1 * num_tokens)


def draw_typical(seed: str, num_tokens: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits and bias as `draw` returns them, typical for the rank whose first expert is `offset`.

    The public workloads need at most 13 attempts; the chance of one is least, about a tenth, near T = 50.
    """
    attempts = (draw(f"{seed}/{attempt}", num_tokens, {}) for attempt in itertools.count())
    return next(drawn for drawn in attempts if is_typical(num_tokens, *counts(*drawn, offset)))

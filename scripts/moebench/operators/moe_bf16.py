"""moe_bf16: its workloads and their bounds; expert ids and weights look like a trained router's,
made from the uuid.

A token's score of an expert is the expert's popularity plus noise; the best are chosen, and their
softmax weighs them. Popularity belongs to a workload, as each stands for another layer.
"""

from dataclasses import dataclass

import numpy as np
import torch
from flashinfer_bench import Trace, Workload

from definitions import moe_bf16 as definitions
from definitions.moe_bf16 import GEOMETRIES
from moebench.operators.case import Case, normal, sigmoid, trace, uuid_of
from moebench.operators.roofline import Bound, Counts

SMALL = definitions.SMALL
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
POPULARITY = (
    0.4  # deviation of an expert's score; at 0 all are alike, and nothing in a trained router is
)

# name, T, popularity; each is there for something that an implementation gets wrong
HARD = (
    ("one-token", 1, POPULARITY),
    ("no-tokens", 0, POPULARITY),
    ("odd-length", 37, POPULARITY),
    ("all-alike", 64, 0.0),
    ("few-experts", 40, 8.0),  # popularity decides nearly alone: a few experts get most rows
)


@dataclass(frozen=True)
class RoutedCase(Case):
    """popularity: the deviation of an expert's score."""

    popularity: float = POPULARITY


def cases(geometry: str) -> list[RoutedCase]:
    wanted = [(f"T={t}", t, POPULARITY) for t in TOKENS] if geometry == "bf16" else HARD
    definition = definitions.definition_name(geometry)
    return [RoutedCase(geometry, name, uuid_of(definition, name), *rest) for name, *rest in wanted]


def tensors(case: RoutedCase) -> dict[str, torch.Tensor]:
    """Expert ids [T, top_k] int32, best first, and their weights [T, top_k] float32, which sum to
    one.
    """
    num_experts, top_k = (GEOMETRIES[case.geometry][size] for size in ("num_experts", "top_k"))
    popularity = case.popularity * normal(f"{case.uuid}/popularity", (num_experts,))
    scores = popularity + normal(f"{case.uuid}/noise", (case.seq_len, num_experts))
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    chosen = np.take_along_axis(scores, ids, axis=1)
    p = sigmoid(np.maximum(chosen - chosen[:, :1], -16))
    power = p / (1 - p)  # e^x of the scores, from exactly rounded operations
    total = np.zeros((case.seq_len, 1))
    for k in range(top_k):  # numpy's own sum may add in another order elsewhere
        total += power[:, k : k + 1]
    weights = (power / total).astype(np.float32)
    return {
        "expert_ids": torch.from_numpy(ids.astype(np.int32)),
        "expert_weights": torch.from_numpy(weights),
    }


def record(case: RoutedCase) -> Trace:
    random = ("hidden_states", "gemm1_weights", "gemm2_weights")
    return trace(
        case, definitions.definition_name(case.geometry), random, ("expert_ids", "expert_weights")
    )


def counts(workload: Workload, stored: dict[str, torch.Tensor], geometry: str) -> Counts | None:
    """Every expert is local. Raises ValueError for expert_ids of another shape than [T, top_k]."""
    if "expert_ids" not in stored:
        return None
    ids, top_k = stored["expert_ids"].numpy(), GEOMETRIES[geometry]["top_k"]
    if ids.ndim != 2 or ids.shape[1] != top_k:
        raise ValueError(f"expert_ids: got shape {ids.shape}, want [T, {top_k}]")
    return Counts(rows=ids.size, tokens=len(ids), active=len(np.unique(ids)))


def bound(seq_len: int, counts: Counts, geometry: str) -> Bound:
    """The active experts' weights, tokens, ids and weights read once, the output written once."""
    sizes = GEOMETRIES[geometry]
    weights = 3 * sizes["intermediate_size"] * sizes["hidden_size"]
    token_bytes = 2 * 2 * sizes["hidden_size"] + sizes["top_k"] * (4 + 4)
    least, flops = counts.active * 2 * weights + seq_len * token_bytes, 2 * counts.rows * weights
    return Bound(counts.rows, counts.active, least, flops, "bf16")

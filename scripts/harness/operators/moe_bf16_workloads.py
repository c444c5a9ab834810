"""Workloads of moe_bf16: expert ids and weights that look like a trained router's, made from the uuid.

A token's score of an expert is the expert's popularity plus noise; the best are chosen, and their softmax weighs them.
Popularity belongs to a workload, as each stands for another layer.
"""

import math
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from flashinfer_bench import Trace, Workload

from definitions.moe_bf16 import GEOMETRIES
from harness.core import paths
from harness.operators import exact_random
from harness.operators.roofline import Bound
from harness.operators.workload_maker import Maker

TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
POPULARITY = 0.4  # deviation of an expert's score; at 0 all are alike, and nothing in a trained router is
BF16_FLOPS_PER_SECOND = 780e12  # measured, dense bf16 products of large matrices

# name, T, popularity; each is there for something that an implementation gets wrong
HARD = (
    ("one-token", 1, POPULARITY),
    ("no-tokens", 0, POPULARITY),
    ("odd-length", 37, POPULARITY),
    ("all-alike", 64, 0.0),
    ("few-experts", 40, 8.0),  # popularity decides nearly alone: a few experts get most rows
)


@dataclass(frozen=True)
class Case:
    """One workload before it is written down; popularity: the deviation of an expert's score."""

    name: str
    uuid: str
    seq_len: int
    popularity: float = POPULARITY

    @property
    def label(self) -> str:
        return f"T={self.seq_len}" if self.name.startswith("T=") else f"{self.name} T={self.seq_len}"


def cases(geometry: str, definition: str) -> list[Case]:
    """The workloads of a geometry, ordered as they are run."""
    wanted = [(f"T={t}", t, POPULARITY) for t in TOKENS] if geometry == "bf16" else HARD
    return [Case(name, str(uuid.uuid5(uuid.NAMESPACE_OID, f"{definition}/{name}")), *rest) for name, *rest in wanted]


def routing(case: Case, geometry: str) -> tuple[np.ndarray, np.ndarray]:
    """Expert ids [T, top_k] int32, best first, and weights [T, top_k] float32, which sum to one."""
    num_experts, top_k = GEOMETRIES[geometry]["num_experts"], GEOMETRIES[geometry]["top_k"]
    popularity = case.popularity * exact_random.normal(f"{case.uuid}/popularity", (num_experts,))
    scores = popularity + exact_random.normal(f"{case.uuid}/noise", (case.seq_len, num_experts))
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    chosen = np.take_along_axis(scores, ids, axis=1)
    p = exact_random.sigmoid(np.maximum(chosen - chosen[:, :1], -16))
    power = p / (1 - p)  # e^x of the scores, from exactly rounded operations
    total = np.zeros((case.seq_len, 1))
    for k in range(top_k):  # numpy's own sum may add in another order elsewhere
        total += power[:, k : k + 1]
    return ids.astype(np.int32), (power / total).astype(np.float32)


def tensors(case: Case, geometry: str) -> dict[str, torch.Tensor]:
    """What goes into the case's safetensors file."""
    ids, weights = routing(case, geometry)
    return {"expert_ids": torch.from_numpy(ids), "expert_weights": torch.from_numpy(weights)}


def record(case: Case, definition: str) -> Trace:
    """The case as a FIB workload trace."""
    blob = paths.blob_file(definition, case.uuid)
    inputs = {name: {"type": "random"} for name in ("hidden_states", "gemm1_weights", "gemm2_weights")}
    inputs |= {n: {"type": "safetensors", "path": blob, "tensor_key": n} for n in ("expert_ids", "expert_weights")}
    return Trace(
        definition=definition, workload=Workload(axes={"seq_len": case.seq_len}, inputs=inputs, uuid=case.uuid)
    )


def bound(ids: np.ndarray, geometry: str) -> Bound:
    """Bound of a routing: the active experts' weights, tokens, ids and weights read once, the output written once.

    ids: [T, top_k]. Raises ValueError for another number of columns.
    """
    sizes = GEOMETRIES[geometry]
    if ids.ndim != 2 or ids.shape[1] != sizes["top_k"]:
        raise ValueError(f"ids: got shape {ids.shape}, want [T, {sizes['top_k']}]")
    seq_len, rows, active = len(ids), ids.size, len(np.unique(ids))
    weights = 3 * sizes["intermediate_size"] * sizes["hidden_size"]
    token_bytes = 2 * 2 * sizes["hidden_size"] + sizes["top_k"] * (4 + 4)
    return Bound(
        seq_len=seq_len,
        tokens_with_rows=seq_len,
        rows=rows,
        active=active,
        bytes=active * 2 * weights + seq_len * token_bytes,
        flops=2 * rows * weights,
        flops_per_second=BF16_FLOPS_PER_SECOND,
    )


def stored_bound(workload: Workload, root: Path, geometry: str) -> Bound | None:
    """Bound of a workload of the data set at root, from its blob; None where that is missing."""
    spec = workload.inputs.get("expert_ids")
    file = root / spec.path if spec is not None and spec.type == "safetensors" else None
    if file is None or not file.is_file():
        return None
    ids = safetensors.torch.load_file(file).get(spec.tensor_key)
    return None if ids is None else bound(ids.numpy(), geometry)


def expected_active(seq_len: int, geometry: str = "bf16") -> float:
    """Active experts if all were equally popular: an upper bound on the average of any routing."""
    sizes = GEOMETRIES[geometry]
    return sizes["num_experts"] * -math.expm1(seq_len * math.log1p(-sizes["top_k"] / sizes["num_experts"]))


MAKER = Maker(cases, tensors, record, lambda case, geometry: bound(routing(case, geometry)[0], geometry), stored_bound)

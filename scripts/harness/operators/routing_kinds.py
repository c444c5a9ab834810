"""Routings of the FP8 layer for token counts that nobody tuned for, by kind.

real: as the workloads. uniform: no expert is more popular than another. one: every token picks the same experts, of
which one is local where the layer has several ranks. none: no token picks a local expert.
"""

from collections.abc import Callable

import numpy as np
import torch

from harness.operators import routing_model
from harness.operators.catalogue import FP8_MOE, GEOMETRIES, RENORM, ROUTED
from harness.operators.moe_fp8_block_scale import PUBLIC
from harness.operators.moe_fp8_block_scale_routed import ROUTER_INSIDE, after_router

BETWEEN = [0, 2, 3, 4, 8, 24, 100, 128, 200, 256, 400, 512, 700, 1024, 1500, 2048, 3000, 4096, 6000, 8192, 16384, 32768]
TOKENS = sorted({*BETWEEN, *(seq_len for _, seq_len, _ in PUBLIC["full"])})

# Eight of 256 experts in four of eight groups, of which 101 alone is local to the rank that starts at 96. With
# everybody else far below, no noise can open another group or let another expert in.
EIGHT = (5, 9, 13, 40, 44, 101, 200, 204)


def offset_of(geometry: str) -> int:
    """First expert of a rank in the middle; of the first definition's, whose 32 experts are one group, 96."""
    of = GEOMETRIES[geometry]
    local = of["num_local_experts"]
    return of["num_experts"] * 3 // 8 // local * local


def same_experts(geometry: str) -> dict[int, float]:
    """Logits to add so that every token picks the same experts."""
    of = GEOMETRIES[geometry]
    few = range(of["top_k"]) if geometry in RENORM else [each * of["num_experts"] // 256 for each in EIGHT]
    return {expert: 9.0 if expert in few else -9.0 for expert in range(of["num_experts"])}


def none_local(geometry: str) -> dict[int, float]:
    """Logits to add so that no token picks a local expert."""
    first = offset_of(geometry)
    return dict.fromkeys(range(first, first + GEOMETRIES[geometry]["num_local_experts"]), -9.0)


# kind -> seed's first part, logits to add to a geometry's experts
FIXED: dict[str, tuple[str, Callable[[str], dict[int, float]]]] = {
    "uniform": ("sweep/uniform", lambda geometry: {}),
    "one": ("sweep/one", same_experts),
    "none": ("sweep/none", none_local),
}
KINDS = ("real", *FIXED)


def kinds_of(geometry: str) -> list[str]:
    """Those that a geometry can have: a rank with every expert is never without one; [] if it is no FP8 MoE layer."""
    if geometry not in (*FP8_MOE, *ROUTED):
        return []
    of = GEOMETRIES[geometry]
    return [kind for kind in KINDS if kind != "none" or of["num_local_experts"] < of["num_experts"]]


def draw(kind: str, num_tokens: int, geometry: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Logits [T, num_experts] float32 and bias [num_experts] float32, or None with renorm routing."""
    of, biased = GEOMETRIES[geometry], geometry not in RENORM
    if kind == "real":
        return routing_model.draw_typical(f"sweep/{num_tokens}", num_tokens, offset_of(geometry), of, biased)
    first, raised = FIXED[kind]
    return routing_model.draw(f"{first}/{num_tokens}", num_tokens, raised(geometry), 0, of, biased)


def tensors(kind: str, num_tokens: int, geometry: str) -> dict[str, torch.Tensor]:
    """The draw as the definition's inputs."""
    logits, bias = draw(kind, num_tokens, ROUTER_INSIDE.get(geometry, geometry))
    if bias is None:
        found = {"routing_logits": torch.from_numpy(logits).bfloat16()}
    else:
        found = {"routing_logits": torch.from_numpy(logits), "routing_bias": torch.from_numpy(bias).bfloat16()}
    return after_router(found, geometry) if geometry in ROUTED else found

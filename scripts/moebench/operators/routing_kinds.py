"""Workloads of the FP8 layer at any token count, for what no recorded workload has: `run --tokens`,
`profile`.

skewed: routing as the recorded workloads have it. uniform: no expert is more popular than another.
one-expert: every token picks the same experts, of which one is local where the layer has several
ranks.
"""

from collections.abc import Callable

import safetensors.torch
import torch
from flashinfer_bench import Workload

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun
from moebench.operators import routing_model
from moebench.operators.case import uuid_of
from moebench.operators.catalogue import GEOMETRIES, ROUTED, definition_name, form, operator
from moebench.operators.moe_fp8_block_scale import MoeCase
from moebench.operators.moe_fp8_block_scale_routed import ROUTERS, after_router

# Eight of 256 experts in four of eight groups, of which 101 alone is local to the rank that starts
# at 96. With everybody else far below, no noise can open another group or let another expert in.
EIGHT = (5, 9, 13, 40, 44, 101, 200, 204)


def offset_of(geometry: str) -> int:
    """First expert of a rank in the middle; of the first definition's, whose 32 experts are one
    group, 96.
    """
    of = GEOMETRIES[geometry]
    local = of["num_local_experts"]
    return of["num_experts"] * 3 // 8 // local * local


def same_experts(geometry: str) -> dict[int, float]:
    """Logits to add so that every token picks the same experts."""
    of = ROUTERS.get(geometry, GEOMETRIES[geometry])
    spread = of["top_k"] == len(EIGHT) and of["routing"] != "renorm"
    few = [each * of["num_experts"] // 256 for each in EIGHT] if spread else range(of["top_k"])
    return {expert: 9.0 if expert in few else -9.0 for expert in range(of["num_experts"])}


# kind -> seed's first part, logits to add to a geometry's experts
FIXED: dict[str, tuple[str, Callable[[str], dict[int, float]]]] = {
    "uniform": ("sweep/uniform", lambda geometry: {}),
    "one-expert": ("sweep/one", same_experts),
}
KINDS = ("skewed", *FIXED)


def kinds_of(geometry: str) -> list[str]:
    """Those that a geometry can have: all, or [] if it is no FP8 MoE layer."""
    return [*KINDS] if form(geometry) else []


def tensors(kind: str, num_tokens: int, geometry: str) -> dict[str, torch.Tensor]:
    """The definition's routing inputs; the same ones each time."""
    of = ROUTERS.get(geometry, GEOMETRIES[geometry])
    if kind in FIXED:
        seed, raised = FIXED[kind]
        drawn = routing_model.draw(
            f"{seed}/{num_tokens}", num_tokens, raised(geometry), of, spread=0
        )
    else:
        drawn = routing_model.draw_typical(
            f"sweep/{num_tokens}", num_tokens, offset_of(geometry), of
        )
    found = routing_model.as_inputs(*drawn)
    return after_router(found, geometry) if geometry in ROUTED else found


def workload(kind: str, num_tokens: int, geometry: str) -> tuple[str, Workload]:
    """(label, workload), whose routing is written below blob/. Raises CannotRun for a geometry
    without such kinds.
    """
    if kind not in kinds_of(geometry):
        raise CannotRun(f"--tokens: {geometry} has no routing to choose; it is for FP8 MoE layers")
    name, label = definition_name(geometry), f"T={num_tokens} {kind}"
    case = MoeCase(
        geometry, label, uuid_of(name, f"{kind}:{num_tokens}"), num_tokens, offset_of(geometry)
    )
    content = safetensors.torch.save(tensors(kind, num_tokens, geometry))
    write_atomically(paths.ROOT / paths.blob_file(name, case.uuid), content)
    return label, operator(geometry).record(case).workload

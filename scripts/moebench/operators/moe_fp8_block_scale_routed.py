"""moe_fp8_block_scale_routed: the workloads of each geometry and their bounds.

A workload has the tokens, the rank and the routing of a workload with the router inside, so that
what is measured of both forms can be compared; small geometries add what only ids can hold. A layer
without such a form is routed as one of sigmoid and bias would be, or of renorm where that is its
router.
"""

from dataclasses import dataclass

import numpy as np
import torch
from flashinfer_bench import Trace, Workload

from definitions import moe_fp8_block_scale_routed as definitions
from definitions.moe_fp8_block_scale_routed import GEOMETRIES, ROUTER_INSIDE, ROUTERS, SMALL
from moebench.operators import moe_fp8_block_scale, moe_fp8_block_scale_renorm, routing_model
from moebench.operators.case import uuid_of
from moebench.operators.moe_fp8_block_scale import (
    MODEL_TOKENS,
    ROUTED_SCALING_FACTOR,
    SCALE_NAMES,
    MoeCase,
    layer_bound,
    layer_trace,
    middle_rank,
    router_outputs,
)
from moebench.operators.roofline import Bound, Counts

NO_EXPERT = (
    -1,
    -(2**31),
    2**31 - 1,
)  # ids that no rank has, far ones too: subtracting an offset may wrap around


@dataclass(frozen=True)
class RoutedCase(MoeCase):
    """like: the case whose routing this has; None draws its own. ids: "chosen" by that alone, or a
    key of SPOILT.
    """

    like: MoeCase | None = None
    ids: str = "chosen"


def padded(ids: np.ndarray, weights: np.ndarray, of: dict) -> None:
    """A batch for a CUDA graph: the last tokens are none, and their weights are whatever was
    there.
    """
    ids[len(ids) * 2 // 3 :] = -1
    weights[len(ids) * 2 // 3 :] = np.nan


def without_expert(ids: np.ndarray, weights: np.ndarray, of: dict) -> None:
    """Some slots have no expert: each of NO_EXPERT, and the number of experts."""
    for at, none in enumerate((*NO_EXPERT, of["num_experts"])):
        ids[at::5, at::3] = none
        weights[at::5, at::3] = np.nan


def twice(ids: np.ndarray, weights: np.ndarray, of: dict) -> None:
    """Every other token has its first expert in the last slot, too, as random ids of a trial run
    have.
    """
    ids[::2, -1] = ids[::2, 0]


SPOILT = {"padded-batch": padded, "slots-without-expert": without_expert, "experts-twice": twice}


def family_of(geometry: str):
    """The module that makes the workloads of a geometry with the router inside."""
    renorm = geometry in moe_fp8_block_scale_renorm.GEOMETRIES
    return moe_fp8_block_scale_renorm if renorm else moe_fp8_block_scale


def cases(geometry: str) -> list[RoutedCase]:
    inside, definition = ROUTER_INSIDE.get(geometry), definitions.definition_name(geometry)
    if inside is None:
        of, named = GEOMETRIES[geometry], {f"T={t}": t for t in MODEL_TOKENS}
        return [
            RoutedCase(geometry, name, uuid_of(definition, name), t, middle_rank(of))
            for name, t in named.items()
        ]
    known = {case.name: case for case in family_of(inside).cases(inside)}
    named = [(name, like, "chosen") for name, like in known.items()]
    if geometry in SMALL:
        named += [(name, known["harsh-scales"], name) for name in SPOILT]

    def case(name: str, like: MoeCase, ids: str) -> RoutedCase:
        given = geometry, name, uuid_of(definition, name), like.seq_len, like.offset, like.raised
        return RoutedCase(
            *given, scales=like.scales if ids == "chosen" else "random", like=like, ids=ids
        )

    return [case(*each) for each in named]


def after_router(stored: dict[str, torch.Tensor], geometry: str) -> dict[str, torch.Tensor]:
    """topk_ids and topk_weights for a workload's tensors with the router inside. geometry: the
    routed one.
    """
    logits, bias = stored["routing_logits"].float().numpy(), stored.get("routing_bias")
    bias = None if bias is None else bias.float().numpy()
    ids, weights = routing_model.route(logits, bias, ROUTERS[geometry], ROUTED_SCALING_FACTOR)
    return {"topk_ids": torch.from_numpy(ids), "topk_weights": torch.from_numpy(weights)}


def tensors(case: RoutedCase) -> dict[str, torch.Tensor]:
    like = case.like
    stored = (
        family_of(like.geometry).tensors(like)
        if like
        else router_outputs(case, ROUTERS[case.geometry])
    )
    found = after_router(stored, case.geometry)
    if case.ids in SPOILT:
        SPOILT[case.ids](
            found["topk_ids"].numpy(), found["topk_weights"].numpy(), GEOMETRIES[case.geometry]
        )
    if case.scales == "harsh":
        found |= {name: stored[name] for name in SCALE_NAMES}
        found["hidden_states_scale"] = stored["hidden_states_scale"].t().contiguous()
    return found


def record(case: RoutedCase) -> Trace:
    name, scalars = definitions.definition_name(case.geometry), {"local_expert_offset": case.offset}
    return layer_trace(case, name, ("topk_ids", "topk_weights"), scalars)


def counts(workload: Workload, stored: dict[str, torch.Tensor], geometry: str) -> Counts | None:
    offset = workload.inputs.get("local_expert_offset")
    if "topk_ids" not in stored or offset is None or offset.type != "scalar":
        return None
    chosen = stored["topk_ids"].to(torch.int64).numpy() - int(offset.value)
    return routing_model.local_counts(chosen, GEOMETRIES[geometry])


def bound(seq_len: int, counts: Counts, geometry: str) -> Bound:
    of = GEOMETRIES[geometry]
    return layer_bound(seq_len, counts, seq_len * of["top_k"] * (4 + 4), of)

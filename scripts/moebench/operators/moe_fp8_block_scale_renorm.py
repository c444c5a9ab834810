"""moe_fp8_block_scale_renorm: the workloads of each geometry and their bounds."""

import torch
from flashinfer_bench import Trace, Workload

from definitions import moe_fp8_block_scale_renorm as definitions
from definitions.moe_fp8_block_scale_renorm import GEOMETRIES, SMALL
from moebench.operators import routing_model
from moebench.operators.case import uuid_of
from moebench.operators.moe_fp8_block_scale import (
    MODEL_TOKENS,
    MoeCase,
    layer_bound,
    layer_trace,
    router_outputs,
    stored_scales,
)
from moebench.operators.roofline import Bound, Counts


def hard_cases(of: dict) -> list[tuple]:
    """As `moe_fp8_block_scale.hard_cases`; every expert is local, so the first is 0."""
    experts = range(of["num_experts"])
    same = {
        expert: 9.0 if expert % (len(experts) // of["top_k"]) == 0 else -3.0 for expert in experts
    }
    return [
        ("one-token", 1, 0, {}, "random"),
        ("no-tokens", 0, 0, {}, "random"),
        ("same-experts", 33, 0, same, "random"),
        ("one-expert-takes-all", 70, 0, {3: 9.0}, "random"),
        ("odd-length", 37, 0, {}, "random"),
        ("harsh-scales", 24, 0, {}, "harsh"),
        ("harsh-scales-one-token", 1, 0, {3: 4.0}, "harsh"),
    ]


def cases(geometry: str) -> list[MoeCase]:
    definition = definitions.definition_name(geometry)
    listed = (
        hard_cases(GEOMETRIES[geometry])
        if geometry in SMALL
        else [(f"T={t}", t, 0) for t in MODEL_TOKENS]
    )
    return [MoeCase(geometry, name, uuid_of(definition, name), *rest) for name, *rest in listed]


def tensors(case: MoeCase) -> dict[str, torch.Tensor]:
    of = GEOMETRIES[case.geometry]
    return router_outputs(case, of) | stored_scales(case, of)


def record(case: MoeCase) -> Trace:
    return layer_trace(case, definitions.definition_name(case.geometry), ["routing_logits"], {})


def counts(workload: Workload, stored: dict[str, torch.Tensor], geometry: str) -> Counts | None:
    if "routing_logits" not in stored:
        return None
    of, values = GEOMETRIES[geometry], stored["routing_logits"].to(torch.float32).numpy()
    return routing_model.local_counts(routing_model.select(values, None, of), of)


def bound(seq_len: int, counts: Counts, geometry: str) -> Bound:
    of = GEOMETRIES[geometry]
    return layer_bound(seq_len, counts, 2 * seq_len * of["num_experts"], of)

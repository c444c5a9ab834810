"""moe_fp8_block_scale_renorm: the workloads of each geometry and their bounds."""

import numpy as np
import torch
from flashinfer_bench import Trace, Workload

from definitions import moe_fp8_block_scale_renorm as definitions
from harness.operators import routing_model
from harness.operators.case import uuid_of
from harness.operators.moe_fp8_block_scale import MODEL_TOKENS, MoeCase, layer_bound, layer_trace, stored_scales
from harness.operators.roofline import Bound, Counts

GEOMETRIES = definitions.GEOMETRIES
SMALL = definitions.SMALL


class RenormCase(MoeCase):
    """Every expert is local: offset is 0."""

    of = property(lambda self: GEOMETRIES[self.geometry])


def hard_cases(of: dict) -> list[tuple]:
    """name, T, first expert, raised, scales; each is there for something that an implementation gets wrong."""
    experts = range(of["num_experts"])
    same = {expert: 9.0 if expert % (len(experts) // of["top_k"]) == 0 else -3.0 for expert in experts}
    return [
        ("one-token", 1, 0, {}, "random"),
        ("no-tokens", 0, 0, {}, "random"),
        ("same-experts", 33, 0, same, "random"),
        ("one-expert-takes-all", 70, 0, {3: 9.0}, "random"),
        ("odd-length", 37, 0, {}, "random"),
        ("harsh-scales", 24, 0, {}, "harsh"),
        ("harsh-scales-one-token", 1, 0, {3: 4.0}, "harsh"),
    ]


def cases(geometry: str) -> list[RenormCase]:
    definition = definitions.definition_name(geometry)
    listed = hard_cases(GEOMETRIES[geometry]) if geometry in SMALL else [(f"T={t}", t, 0) for t in MODEL_TOKENS]
    return [RenormCase(geometry, name, uuid_of(definition, name), *rest) for name, *rest in listed]


def logits(case: RenormCase) -> np.ndarray:
    """Router logits [T, num_experts] float32, exact in bfloat16, of a case."""
    of = GEOMETRIES[case.geometry]
    if case.raised is None:
        return routing_model.draw_typical(case.uuid, case.seq_len, 0, of, biased=False)[0]
    return routing_model.draw(f"{case.uuid}/0", case.seq_len, case.raised, of=of, biased=False)[0]


def tensors(case: RenormCase) -> dict[str, torch.Tensor]:
    found = {"routing_logits": torch.from_numpy(logits(case)).to(torch.bfloat16)}
    return found | stored_scales(case, GEOMETRIES[case.geometry])


def record(case: RenormCase) -> Trace:
    return layer_trace(case, definitions.definition_name(case.geometry), ["routing_logits"], {})


def counts(workload: Workload, stored: dict[str, torch.Tensor], geometry: str) -> Counts | None:
    if "routing_logits" not in stored:
        return None
    of, values = GEOMETRIES[geometry], stored["routing_logits"].to(torch.float32).numpy()
    return routing_model.local_counts(routing_model.select(values, None, of), of)


def bound(seq_len: int, counts: Counts, geometry: str) -> Bound:
    of = GEOMETRIES[geometry]
    return layer_bound(seq_len, counts, 2 * seq_len * of["num_experts"], of)

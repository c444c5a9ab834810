"""moe_fp8_block_scale: the workloads of each geometry (which tokens, which routing, which scales)
and their bounds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from flashinfer_bench import Trace, Workload

from definitions import moe_fp8_block_scale as definitions
from definitions.moe_fp8_block_scale import BLOCK, GEOMETRIES, SMALL
from moebench.operators import routing_model
from moebench.operators.case import Case, integers, trace, uuid_of
from moebench.operators.roofline import Bound, Counts

ROUTED_SCALING_FACTOR = 2.5
SCALE_NAMES = ("hidden_states_scale", "gemm1_weights_scale", "gemm2_weights_scale")


@dataclass(frozen=True)
class MoeCase(Case):
    """offset: the rank's first expert.

    raised: logits added to an expert (global index), to force or to prevent its selection; None for
    a typical draw, whose counts of rows and active experts are near their averages. scales:
    "random" leaves them to FIB; "harsh" ships large, negative and zero ones.
    """

    offset: int
    raised: dict[int, float] | None = None
    scales: str = "random"


ROWS = (
    Path(definitions.__file__)
    .with_name("public_workloads.csv")
    .read_text(encoding="utf-8")
    .splitlines()[1:]
)
# geometry -> uuid, T, rank's first expert, as the public data set has them
PUBLIC = {
    "full": [(uuid, int(t), int(first)) for uuid, t, first in (row.split(",") for row in ROWS)]
}
MODEL_TOKENS = (
    1,
    2,
    4,
    8,
    16,
    32,
    64,
    128,
    256,
    1024,
    4096,
    8192,
)  # of every geometry without public workloads


def hard_cases(of: dict) -> list[tuple]:
    """name, T, rank's first expert, raised, scales; each is there for something that an
    implementation gets wrong.
    """
    experts, local = of["num_experts"], of["num_local_experts"]
    eighth = [
        experts // local * n // 8 * local for n in range(8)
    ]  # first experts of ranks, from the first to the last
    # Lowering everybody else closes the other groups, or they would be chosen in spite of one
    # strong expert: a group counts by its best two.
    favourites = range(eighth[2], eighth[2] + local, local // of["top_k"])
    same_eight = {expert: 9.0 if expert in favourites else -3.0 for expert in range(experts)}
    rank = range(eighth[4], eighth[4] + local)
    takes_all = {expert: -9.0 if expert in rank else -3.0 for expert in range(experts)} | {
        rank[3]: 9.0
    }
    none_local = dict.fromkeys(range(eighth[3], eighth[3] + local), -9.0)
    return [
        ("one-token", 1, eighth[1] or local, {}, "random"),
        ("no-tokens", 0, 0, {}, "random"),
        ("none-local", 5, eighth[3], none_local, "random"),
        ("same-eight-local", 33, eighth[2], same_eight, "random"),
        ("one-expert-takes-all", 70, eighth[4], takes_all, "random"),
        ("first-rank", 16, 0, {}, "random"),
        ("last-rank-odd-length", 37, experts - local, {}, "random"),
        ("offset-across-groups", 19, experts * 77 // 256, {}, "random"),
        ("harsh-scales", 24, eighth[5], {}, "harsh"),
        ("harsh-scales-one-token", 1, eighth[6], {eighth[6] + 3: 4.0}, "harsh"),
    ]


def cases(geometry: str) -> list[MoeCase]:
    if geometry in PUBLIC:
        return [
            MoeCase(geometry, f"T={t}", uuid, t, offset) for uuid, t, offset in PUBLIC[geometry]
        ]
    of, definition = GEOMETRIES[geometry], definitions.definition_name(geometry)
    if geometry in SMALL:
        return [
            MoeCase(geometry, name, uuid_of(definition, name), *rest)
            for name, *rest in hard_cases(of)
        ]
    return [
        MoeCase(geometry, f"T={t}", uuid_of(definition, f"T={t}"), t, middle_rank(of))
        for t in MODEL_TOKENS
    ]


def middle_rank(of: dict) -> int:
    """First expert of a rank in the middle; 0 where one rank holds all."""
    return of["num_experts"] // of["num_local_experts"] // 2 * of["num_local_experts"]


def router_outputs(case: MoeCase, of: dict) -> dict[str, torch.Tensor]:
    """`routing_model.as_inputs` of a case. of: the router's sizes."""
    if case.raised is None:
        return routing_model.as_inputs(
            *routing_model.draw_typical(case.uuid, case.seq_len, case.offset, of)
        )
    return routing_model.as_inputs(
        *routing_model.draw(f"{case.uuid}/0", case.seq_len, case.raised, of)
    )


def stored_scales(case: MoeCase, of: dict) -> dict[str, torch.Tensor]:
    """Harsh block scales: a fifth are zero and the rest of either sign, up to 32; exact in fp32. {}
    if FIB draws them.

    The first token's and the last local expert's scales are all zero where there is more than one.
    """
    if case.scales != "harsh":
        return {}
    hidden, inter, local = (
        of["hidden_size"] // BLOCK,
        of["intermediate_size"] // BLOCK,
        of["num_local_experts"],
    )
    shapes = (hidden, case.seq_len), (local, 2 * inter, hidden), (local, hidden, inter)
    scales = {}
    for name, shape in zip(SCALE_NAMES, shapes, strict=True):
        seed, count = f"{case.uuid}/{name}", math.prod(shape)
        size = integers(f"{seed}/size", count, 513) - 256
        zero = integers(f"{seed}/zero", count, 5) == 0
        scales[name] = torch.from_numpy(
            np.where(zero, 0, size / 8).astype(np.float32).reshape(shape)
        )
    if case.seq_len > 1:
        scales["hidden_states_scale"][:, 0] = 0
    scales["gemm2_weights_scale"][-1] = 0
    return scales


def tensors(case: MoeCase) -> dict[str, torch.Tensor]:
    of = GEOMETRIES[case.geometry]
    return router_outputs(case, of) | stored_scales(case, of)


def layer_trace(
    case: MoeCase, definition: str, routing: Iterable[str], scalars: dict[str, float]
) -> Trace:
    """The case as a FIB workload trace of an FP8 layer. routing: its inputs that are stored."""
    stored = [*routing, *(SCALE_NAMES if case.scales == "harsh" else [])]
    return trace(
        case,
        definition,
        ("hidden_states", "gemm1_weights", "gemm2_weights", *SCALE_NAMES),
        stored,
        scalars,
    )


def record(case: MoeCase) -> Trace:
    scalars = {"local_expert_offset": case.offset, "routed_scaling_factor": ROUTED_SCALING_FACTOR}
    name = definitions.definition_name(case.geometry)
    return layer_trace(case, name, ("routing_logits", "routing_bias"), scalars)


def expert_bytes(of: dict) -> int:
    """An expert's FP8 weights and their fp32 scales, one per block."""
    weights = 3 * of["intermediate_size"] * of["hidden_size"]
    return weights + 4 * weights // BLOCK**2


def layer_bound(seq_len: int, counts: Counts, routing_bytes: int, of: dict) -> Bound:
    """Bound of a layer whose routing inputs take so many bytes."""
    hidden = of["hidden_size"]
    token_bytes, output_bytes = hidden + 4 * hidden // BLOCK, seq_len * hidden * 2
    least = (
        counts.active * expert_bytes(of)
        + counts.tokens * token_bytes
        + routing_bytes
        + output_bytes
    )
    return Bound(
        counts.rows, counts.active, least, 2 * counts.rows * 3 * of["intermediate_size"] * hidden
    )


def counts(workload: Workload, stored: dict[str, torch.Tensor], geometry: str) -> Counts | None:
    """Raises ValueError for logits of another width."""
    offset, of = workload.inputs.get("local_expert_offset"), GEOMETRIES[geometry]
    if (
        not {"routing_logits", "routing_bias"} <= stored.keys()
        or offset is None
        or offset.type != "scalar"
    ):
        return None
    logits, bias = (
        stored[name].to(torch.float32).numpy() for name in ("routing_logits", "routing_bias")
    )
    if logits.ndim != 2 or logits.shape[1] != of["num_experts"]:
        raise ValueError(f"logits: got shape {logits.shape}, want [T, {of['num_experts']}]")
    return routing_model.local_counts(
        routing_model.select(logits, bias, of) - int(offset.value), of
    )


def bound(seq_len: int, counts: Counts, geometry: str) -> Bound:
    of = GEOMETRIES[geometry]
    routing_bytes = seq_len * of["num_experts"] * 4 + of["num_experts"] * 2
    return layer_bound(seq_len, counts, routing_bytes, of)

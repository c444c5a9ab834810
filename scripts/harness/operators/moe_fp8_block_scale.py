"""moe_fp8_block_scale: the workloads of each geometry (which tokens, which routing, which scales) and their bounds."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from flashinfer_bench import Trace, Workload

from definitions import moe_fp8_block_scale as definitions
from definitions.layers import has_all_experts
from definitions.moe_fp8_block_scale import BLOCK
from harness.operators import routing_model
from harness.operators.case import Case, integers, trace, uuid_of
from harness.operators.roofline import Bound, Counts

GEOMETRIES = definitions.GEOMETRIES
SMALL = definitions.SMALL
ROUTED_SCALING_FACTOR = 2.5
SCALE_NAMES = ("hidden_states_scale", "gemm1_weights_scale", "gemm2_weights_scale")


@dataclass(frozen=True)
class MoeCase(Case):
    """offset: the rank's first expert.

    raised: logits added to an expert (global index), to force or to prevent its selection; None for a typical draw,
    whose counts of rows and active experts are near their averages.
    scales: "random" leaves them to FIB; "harsh" ships large, negative and zero ones.
    """

    offset: int
    raised: dict[int, float] | None = None
    scales: str = "random"

    of = property(lambda self: GEOMETRIES[self.geometry])

    @property
    def size(self) -> str:
        return f"T={self.seq_len}{'' if has_all_experts(self.of) else f' offset={self.offset}'}"


# Geometry -> uuid, T, rank's first expert, as the public data set has them.
PUBLIC = {
    "full": [
        ("e05c6c03-5603-4a1c-b34c-dcce0ecaeea4", 1, 32),
        ("b8f4f012-a32e-4356-b4e1-7665b3d598af", 7, 192),
        ("8cba5890-4288-448a-93b8-42c14c6b9420", 14, 0),
        ("2e69caee-ae5c-473b-aa99-5dc6659829d4", 15, 32),
        ("a7c2bcfd-a2f4-479e-8d32-200115df89cf", 16, 224),
        ("6230e838-67ca-41dd-a9d6-6f36b7676c6b", 32, 32),
        ("f7d6ac7c-24ec-47e4-aefc-4863a5e3e1d9", 52, 160),
        ("fc378037-e8fa-4305-b00f-4af47933fd53", 53, 32),
        ("76010cb4-f73c-4145-8365-8642a2ce99de", 54, 128),
        ("81955b1e-086f-49c1-9f40-a18a5aaf509d", 55, 128),
        ("4822167c-dae5-4bb1-bb53-e4adb256245b", 56, 64),
        ("74d7ff04-0365-4cf8-a824-ce61b7131dea", 57, 96),
        ("e626d3e6-6c29-4fd8-bb7c-5b09eec61702", 58, 64),
        ("eedc63b2-c03b-4cf2-8d16-1f46566e3af7", 59, 160),
        ("5eadab1e-a0e3-4966-b0fd-1115cd77497c", 62, 96),
        ("8f1ff9f1-6747-41d1-a1d8-2868cdacf893", 80, 96),
        ("1a4c6ba1-3cd2-4d7d-b716-84f2d52b69fc", 901, 96),
        ("58a34f27-7995-4155-8b46-f60a7225e20e", 11948, 128),
        ("5e8dc11c-f2a9-42d5-8dce-9419cbf34d5d", 14107, 32),
    ]
}

MODEL_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192)  # of every geometry without public workloads


def hard_cases(of: dict) -> list[tuple]:
    """name, T, rank's first expert, raised, scales; each is there for something that an implementation gets wrong."""
    experts, local = of["num_experts"], of["num_local_experts"]
    eighth = [experts // local * n // 8 * local for n in range(8)]  # first experts of ranks, from the first to the last
    # Lowering everybody else closes the other groups, or they would be chosen in spite of one strong expert: a group
    # counts by its best two.
    favourites = range(eighth[2], eighth[2] + local, local // of["top_k"])
    same_eight = {expert: 9.0 if expert in favourites else -3.0 for expert in range(experts)}
    rank = range(eighth[4], eighth[4] + local)
    takes_all = {expert: -9.0 if expert in rank else -3.0 for expert in range(experts)} | {rank[3]: 9.0}
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
        return [MoeCase(geometry, f"T={t}", uuid, t, offset) for uuid, t, offset in PUBLIC[geometry]]
    of, definition = GEOMETRIES[geometry], definitions.definition_name(geometry)
    if geometry in SMALL:
        return [MoeCase(geometry, name, uuid_of(definition, name), *rest) for name, *rest in hard_cases(of)]
    return [MoeCase(geometry, f"T={t}", uuid_of(definition, f"T={t}"), t, middle_rank(of)) for t in MODEL_TOKENS]


def middle_rank(of: dict) -> int:
    """First expert of a rank in the middle; 0 where one rank holds all."""
    return of["num_experts"] // of["num_local_experts"] // 2 * of["num_local_experts"]


def routing(case: MoeCase) -> tuple[np.ndarray, np.ndarray]:
    """Logits [T, num_experts] and bias [num_experts], float32, of a case."""
    of = GEOMETRIES[case.geometry]
    if case.raised is None:
        return routing_model.draw_typical(case.uuid, case.seq_len, case.offset, of)
    return routing_model.draw(f"{case.uuid}/0", case.seq_len, case.raised, of=of)


def stored_scales(case: MoeCase, of: dict) -> dict[str, torch.Tensor]:
    """Harsh block scales: a fifth are zero and the rest of either sign, up to 32; exact in fp32. {} if FIB draws them.

    The first token's and the last local expert's scales are all zero where there is more than one.
    """
    if case.scales != "harsh":
        return {}
    hidden, inter, local = of["hidden_size"] // BLOCK, of["intermediate_size"] // BLOCK, of["num_local_experts"]
    shapes = (hidden, case.seq_len), (local, 2 * inter, hidden), (local, hidden, inter)
    scales = {}
    for name, shape in zip(SCALE_NAMES, shapes, strict=True):
        seed, count = f"{case.uuid}/{name}", math.prod(shape)
        size = integers(f"{seed}/size", count, 513) - 256
        zero = integers(f"{seed}/zero", count, 5) == 0
        scales[name] = torch.from_numpy(np.where(zero, 0, size / 8).astype(np.float32).reshape(shape))
    if case.seq_len > 1:
        scales["hidden_states_scale"][:, 0] = 0
    scales["gemm2_weights_scale"][-1] = 0
    return scales


def tensors(case: MoeCase) -> dict[str, torch.Tensor]:
    logits, bias = map(torch.from_numpy, routing(case))
    found = {"routing_logits": logits, "routing_bias": bias.to(torch.bfloat16)}
    return found | stored_scales(case, GEOMETRIES[case.geometry])


def layer_trace(case: MoeCase, definition: str, routing: Iterable[str], scalars: dict[str, float]) -> Trace:
    """The case as a FIB workload trace of an FP8 layer. routing: its inputs that are stored."""
    stored = [*routing, *(SCALE_NAMES if case.scales == "harsh" else [])]
    return trace(case, definition, ("hidden_states", "gemm1_weights", "gemm2_weights", *SCALE_NAMES), stored, scalars)


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
    least = counts.active * expert_bytes(of) + counts.tokens * token_bytes + routing_bytes + output_bytes
    return Bound(seq_len, counts.rows, counts.active, least, 2 * counts.rows * 3 * of["intermediate_size"] * hidden)


def counts(workload: Workload, stored: dict[str, torch.Tensor], geometry: str) -> Counts | None:
    """Raises ValueError for logits of another width."""
    offset, of = workload.inputs.get("local_expert_offset"), GEOMETRIES[geometry]
    if not {"routing_logits", "routing_bias"} <= stored.keys() or offset is None or offset.type != "scalar":
        return None
    logits, bias = (stored[name].to(torch.float32).numpy() for name in ("routing_logits", "routing_bias"))
    if logits.ndim != 2 or logits.shape[1] != of["num_experts"]:
        raise ValueError(f"logits: got shape {logits.shape}, want [T, {of['num_experts']}]")
    return routing_model.local_counts(routing_model.select(logits, bias, of) - int(offset.value), of)


def bound(seq_len: int, counts: Counts, geometry: str) -> Bound:
    of = GEOMETRIES[geometry]
    routing_bytes = seq_len * of["num_experts"] * 4 + of["num_experts"] * 2
    return layer_bound(seq_len, counts, routing_bytes, of)

"""What workloads of the FP8 layer are made from, whatever its form: tokens, ranks, scales."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from flashinfer_bench import Trace, Workload

from moebench.operators.case import Case, integers, normal, sigmoid, trace
from moebench.operators.fp8_layer import BLOCK
from moebench.operators.layers import Sizes, expert_ranks, routed_experts
from moebench.operators.roofline import Counts
from moebench.operators.routing import model as routing_model

SCALE_NAMES = ("hidden_states_scale", "gemm1_weights_scale", "gemm2_weights_scale")
RANDOM_INPUTS = ("hidden_states", "gemm1_weights", "gemm2_weights", *SCALE_NAMES)
# of every layer without public workloads
MODEL_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192)


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


def middle_rank(sizes: Sizes) -> int:
    """Return the first expert of a rank in the middle; 0 where one rank holds all."""
    return expert_ranks(sizes) // 2 * routed_experts(sizes)


def router_outputs(case: MoeCase, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Return the routing inputs of a case. sizes: the router's."""
    if case.raised is None:
        drawn = routing_model.draw_typical(case.uuid, case.seq_len, case.offset, sizes)
    else:
        drawn = routing_model.draw(f"{case.uuid}/0", case.seq_len, case.raised, sizes)
    return routing_model.as_inputs(*drawn)


def after_router(inputs: dict[str, torch.Tensor], sizes: Sizes) -> dict[str, torch.Tensor]:
    """Return topk_ids and topk_weights for a router's outputs. sizes: the router's."""
    logits = inputs["routing_logits"].float().numpy()
    bias = inputs.get("routing_bias")
    if bias is not None:
        bias = bias.float().numpy()

    ids, weights = routing_model.route(logits, bias, sizes, sizes["routed_scaling_factor"])
    return {"topk_ids": torch.from_numpy(ids), "topk_weights": torch.from_numpy(weights)}


def append_shared_experts(
    routed: dict[str, torch.Tensor], offset: int, sizes: Sizes, seed: str
) -> None:
    """Append the rank's shared experts to topk_ids and topk_weights of the tokens that take them on
    this rank: token t on rank t % ranks. Others get -1.

    Their ids are those behind the rank's other experts, and the ids after that move up. Their
    weight is 1, or a sigmoid where the layer has a gate. offset: the rank's first expert. sizes:
    the router's. seed: of the gate.
    """
    shared = sizes["num_shared_experts"]
    if not shared:
        return

    ids = routed["topk_ids"]
    num_tokens = len(ids)
    first_shared = offset + routed_experts(sizes)
    moved = torch.where(ids < first_shared, ids, ids + shared)

    token = torch.arange(num_tokens, device=ids.device)
    here = token % expert_ranks(sizes) == offset // routed_experts(sizes)
    shared_ids = torch.arange(first_shared, first_shared + shared, device=ids.device)
    shared_ids = torch.where(here.unsqueeze(1), shared_ids, -1).to(torch.int32)

    gate = np.ones((num_tokens, 1))
    if sizes["shared_gate"]:
        gate = sigmoid(normal(f"{seed}/shared-gate", (num_tokens, 1)))
    weights = torch.from_numpy(gate.astype(np.float32)).to(ids.device)

    routed["topk_ids"] = torch.cat([moved, shared_ids], dim=1)
    routed["topk_weights"] = torch.cat(
        [routed["topk_weights"], weights.expand(num_tokens, shared)], dim=1
    )


def counts_after_router(
    workload: Workload, stored: dict[str, torch.Tensor], sizes: Sizes
) -> Counts | None:
    """Return the counts of a workload with top-k given, or None where it lacks the routing."""
    offset = workload.inputs.get("local_expert_offset")
    if "topk_ids" not in stored or offset is None or offset.type != "scalar":
        return None
    chosen = stored["topk_ids"].to(torch.int64).numpy() - int(offset.value)
    return routing_model.local_counts(chosen, sizes)


def stored_scales(case: MoeCase, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Return harsh block scales, or {} if FIB draws them.

    A fifth are zero and the rest of either sign, up to 32; exact in fp32. The first token's and the
    last local expert's scales are all zero where there is more than one.
    """
    if case.scales != "harsh":
        return {}

    hidden = sizes["hidden_size"] // BLOCK
    inter = sizes["intermediate_size"] // BLOCK
    local = sizes["num_local_experts"]
    shapes = {
        "hidden_states_scale": (hidden, case.seq_len),
        "gemm1_weights_scale": (local, 2 * inter, hidden),
        "gemm2_weights_scale": (local, hidden, inter),
    }

    scales = {}
    for name, shape in shapes.items():
        seed = f"{case.uuid}/{name}"
        count = math.prod(shape)
        size = integers(f"{seed}/size", count, 513) - 256
        zero = integers(f"{seed}/zero", count, 5) == 0
        values = np.where(zero, 0, size / 8).astype(np.float32)
        scales[name] = torch.from_numpy(values.reshape(shape))

    if case.seq_len > 1:
        scales["hidden_states_scale"][:, 0] = 0
    scales["gemm2_weights_scale"][-1] = 0
    return scales


def layer_trace(
    case: MoeCase, definition: str, routing: Iterable[str], scalars: dict[str, float]
) -> Trace:
    """Return the case as a FIB workload trace of an FP8 layer. routing: its stored inputs."""
    stored = [*routing]
    if case.scales == "harsh":
        stored += SCALE_NAMES
    return trace(case, definition, RANDOM_INPUTS, stored, scalars)

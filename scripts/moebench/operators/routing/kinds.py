"""Workloads of the FP8 layer at any number of tokens, made for `run --tokens 300` and
`profile --workloads uniform:300`.

Their routing is of one of three kinds. skewed: as the recorded workloads have it. uniform: no
expert is more popular than another. one-expert: every token picks the same experts, of which one is
local where the layer has several ranks.
"""

import safetensors.torch

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun
from moebench.operators import catalogue
from moebench.operators.fp8.layer import MoeCase, append_shared_experts
from moebench.operators.layers import routed_experts
from moebench.operators.operator import Tensors, uuid_of
from moebench.operators.routing import trained_router
from moebench.operators.routing.trained_router import AddedLogits
from moebench.operators.workloads import LabelledWorkload

KINDS = ("skewed", "uniform", "one-expert")
# What "one-expert" chooses of 256 experts: eight in four of the eight groups, of which 101 alone is
# local to the rank that starts at 96. With all others far below, no noise can let another one in.
SAME_EIGHT = (5, 9, 13, 40, 44, 101, 200, 204)


def workload(kind: str, num_tokens: int, layer_key: str) -> LabelledWorkload:
    """Return a workload of a kind, "T=300 uniform", whose routing is written below blob/.

    Raises CannotRun for a definition without such kinds.
    """
    if kind not in kinds_of(layer_key):
        raise CannotRun(
            f"--tokens: {layer_key} has no routing to choose; it is for FP8 MoE layers"
        )

    name = catalogue.definition_name(layer_key)
    label = f"T={num_tokens} {kind}"
    uuid = uuid_of(name, f"{kind}:{num_tokens}")
    case = MoeCase(layer_key, label, uuid, num_tokens, offset_of(layer_key))

    content = safetensors.torch.save(tensors(kind, num_tokens, layer_key))
    write_atomically(paths.ROOT / paths.blob_file(name, uuid), content)
    trace = catalogue.operator(layer_key).record(case)
    return LabelledWorkload(label, trace.workload)


def kinds_of(layer_key: str) -> list[str]:
    """Return the kinds that a definition can have: all, or [] if it is no FP8 MoE layer."""
    return [*KINDS] if catalogue.form(layer_key) else []


def tensors(kind: str, num_tokens: int, layer_key: str) -> Tensors:
    """Return the definition's routing inputs: logits, or ids and weights where the caller routes.

    They are the same ones each time.
    """
    sizes = catalogue.router_sizes(layer_key)
    offset = offset_of(layer_key)
    if kind == "skewed":
        seed = f"sweep/{num_tokens}"
        drawn = trained_router.draw_typical(seed, num_tokens, offset, sizes)
    elif kind == "uniform":
        seed = f"sweep/uniform/{num_tokens}"
        drawn = trained_router.draw(seed, num_tokens, {}, sizes, spread=0)
    else:
        seed = f"sweep/one/{num_tokens}"
        drawn = trained_router.draw(
            seed, num_tokens, same_experts(layer_key), sizes, spread=0
        )

    if not catalogue.takes_top_k(layer_key):
        return drawn.as_inputs()
    routed = trained_router.route(drawn, sizes)
    append_shared_experts(routed, offset, sizes, seed)
    return routed


def same_experts(layer_key: str) -> AddedLogits:
    """Return logits to add so that every token picks the same experts."""
    sizes = catalogue.router_sizes(layer_key)
    experts = sizes["num_experts"]
    chosen = range(sizes["top_k"])
    if sizes["top_k"] == len(SAME_EIGHT) and sizes["routing"] != "renorm":
        chosen = [expert * experts // 256 for expert in SAME_EIGHT]
    return trained_router.logits_choosing(chosen, experts, others=-9.0)


def offset_of(layer_key: str) -> int:
    """Return the first expert of the rank whose routing is drawn: one in the middle, 96 for
    DeepSeek-V3 on eight ranks, where a rank's 32 experts are one group.

    Of a layer with shared experts it is the first rank, which computes them at every number of
    tokens.
    """
    sizes = catalogue.router_sizes(layer_key)
    if sizes["num_shared_experts"]:
        return 0
    local = routed_experts(sizes)
    return sizes["num_experts"] * 3 // 8 // local * local

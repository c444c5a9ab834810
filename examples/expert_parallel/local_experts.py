"""A solution, or the reference, for some experts of a layer, whatever their number."""

import re
from collections.abc import Callable

import torch
from flashinfer_bench import Solution
from flashinfer_bench.compile import BuilderRegistry, Runnable
from layer import weights_of
from moebench.operators import catalogue
from moebench.operators.catalogue import definition
from moebench.operators.moe_fp8_block_scale_routed import routed_key
from moebench.packing import pack

REFERENCE = "reference"  # in place of a solution's name
# In a packed problem.py or problem.cuh.
EXPERTS_NUMBER = re.compile(r"\b(NUM_LOCAL_EXPERTS|kNumLocalExperts) = \d+")


def local_experts(
    name: str, layer: str, experts: range, device: str, routed: bool
) -> Callable[..., torch.Tensor]:
    """Return a function of the definition's inputs before the weights.

    It returns what these experts add, [T, H] bf16. name: a solution's, or REFERENCE. routed: behind
    a router, not with it inside.
    """
    geometry = routed_key(layer) if routed else layer
    runnable = built(name, geometry, len(experts))
    held = [*weights_of(layer, experts, device, gate_first=routed), experts.start]
    if not routed:
        held.append(catalogue.geometries()[layer]["routed_scaling_factor"])
    hidden = catalogue.geometries()[layer]["hidden_size"]

    def added(*inputs: torch.Tensor) -> torch.Tensor:
        num_tokens = len(inputs[0])
        output = torch.empty(num_tokens, hidden, dtype=torch.bfloat16, device=device)
        runnable.call_destination_passing(*inputs, *held, output)
        return output

    return added


def built(name: str, geometry: str, expert_count: int) -> Runnable:
    """Return a solution, built for this number of experts, also one that no definition has.

    The reference takes the number from the weights.
    """
    builders = BuilderRegistry.get_instance()
    full = definition(geometry)
    if name == REFERENCE:
        return builders.build_reference(full)

    packed = pack.pack(name)[geometry].model_dump()
    for source in packed["sources"]:
        source["content"] = EXPERTS_NUMBER.sub(rf"\1 = {expert_count}", source["content"])
    return builders.build(full, Solution(**packed))  # model_copy would keep the hash, FIB's key

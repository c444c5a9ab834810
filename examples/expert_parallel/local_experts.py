"""A solution, or the reference, for some experts of a layer, whatever their number."""

import re
from collections.abc import Callable

import torch
from flashinfer_bench import Solution
from flashinfer_bench.compile import BuilderRegistry
from layer import weights_of
from moebench.operators.catalogue import GEOMETRIES, definition
from moebench.operators.moe_fp8_block_scale_routed import routed_key
from moebench.packing import pack

REFERENCE = "reference"  # in place of a solution's name
NUMBER = re.compile(
    r"\b(NUM_LOCAL_EXPERTS|kNumLocalExperts) = \d+"
)  # in a packed problem.py or problem.cuh


def local_experts(
    name: str, layer: str, experts: range, device: str, routed: bool
) -> Callable[..., torch.Tensor]:
    """A function of the definition's inputs before the weights; it returns what these experts add,
    [T, H] bf16.

    name: a solution's, which is built for this number of experts, also one that no definition has;
    or REFERENCE. routed: behind a router, not with it inside.
    """
    geometry, builders = routed_key(layer) if routed else layer, BuilderRegistry.get_instance()
    if name == REFERENCE:  # takes the number from the weights
        runnable = builders.build_reference(definition(geometry))
    else:
        packed = pack.pack(name)[geometry].model_dump()
        for source in packed["sources"]:
            source["content"] = NUMBER.sub(rf"\1 = {len(experts)}", source["content"])
        runnable = builders.build(
            definition(geometry), Solution(**packed)
        )  # model_copy keeps the hash, FIB's key
    held = [*weights_of(layer, experts, device, gate_first=routed), experts.start]
    held += [] if routed else [GEOMETRIES[layer]["routed_scaling_factor"]]

    def added(*inputs: torch.Tensor) -> torch.Tensor:
        output = torch.empty(
            len(inputs[0]), GEOMETRIES[layer]["hidden_size"], dtype=torch.bfloat16, device=device
        )
        runnable.call_destination_passing(*inputs, *held, output)
        return output

    return added

"""What computes a rank's part of a layer: a solution, or the reference, for the rank's own number of experts."""

import re
from collections.abc import Callable

import torch
from flashinfer_bench import Definition, Solution
from flashinfer_bench.compile import BuilderRegistry

from definitions import moe_fp8_block_scale, moe_fp8_block_scale_routed
from harness.core.errors import UserError
from harness.expert_parallel.layer import Layer, weights_of
from harness.operators.catalogue import GEOMETRIES, definition
from harness.operators.moe_fp8_block_scale import ROUTED_SCALING_FACTOR
from harness.packing import manifest, pack

REFERENCE = "reference"  # in place of a solution's name
OF_A_RANK = {"num_local_experts", "experts_at_once", "model"}  # what may differ between two geometries of one layer


def geometry_of(name: str, layer: Layer, behind_router: bool) -> str:
    """The definition that states the layer in this form, with as many local experts as a rank has if there is one.

    Of those that a solution serves; REFERENCE has all. Raises UserError where there is none.
    """
    inside = {key: key for key in moe_fp8_block_scale.GEOMETRIES}
    found = moe_fp8_block_scale_routed.ROUTER_INSIDE if behind_router else inside
    differing = {key: {n for n, size in GEOMETRIES[of].items() if layer.of.get(n) != size} for key, of in found.items()}
    served = found if name == REFERENCE else manifest.read_manifest(name).definitions
    alike = [key for key, names in differing.items() if names <= OF_A_RANK and key in served]
    if not alike:
        form = "the routed form of " if behind_router else ""
        raise UserError(f"--solution: {name} does not serve {form}{layer.geometry}")
    return min(alike, key=lambda key: GEOMETRIES[key]["num_local_experts"] != layer.local)


def on_a_rank(geometry: str, layer: Layer) -> Definition:
    """The definition with the layer's number of local experts, which may be one that no definition here has."""
    full = definition(geometry)
    local = full.axes["num_local_experts"].model_copy(update={"value": layer.local})
    name = re.sub(r"_e\d+_", f"_e{layer.local}_", full.name)
    return full.model_copy(update={"name": name, "axes": full.axes | {"num_local_experts": local}})


def packed_for(name: str, layer: Layer, behind_router: bool) -> tuple[Definition, Solution]:
    """A solution for the layer's ranks, from what it is packed as for another number of them.

    Its sources differ from that one's in the number of local experts alone, see packing/problem.py. Raises UserError
    as `geometry_of` does.
    """
    geometry = geometry_of(name, layer, behind_router)
    full, solution = on_a_rank(geometry, layer), pack.pack(name)[geometry]
    number = re.compile(r"\b(NUM_LOCAL_EXPERTS|kLocal) = \d+")
    sources = [
        source.model_copy(update={"content": number.sub(rf"\1 = {layer.local}", source.content)})
        if source.path.rpartition("/")[2].startswith("problem.")
        else source
        for source in solution.sources
    ]
    return full, solution.model_copy(update={"definition": full.name, "sources": sources})


def local_part(name: str, layer: Layer, rank: int, device: str, behind_router: bool) -> Callable[..., torch.Tensor]:
    """A function of the definition's inputs before the weights, that returns the rank's part, [T, H] bf16.

    name: a solution's, or REFERENCE. Raises UserError as `geometry_of` does.
    """
    builders = BuilderRegistry.get_instance()
    if name == REFERENCE:
        full = on_a_rank(geometry_of(name, layer, behind_router), layer)
        runnable = builders.build_reference(full)
    else:
        full, solution = packed_for(name, layer, behind_router)
        runnable = builders.build(full, solution)
    first = rank * layer.local
    held = [*weights_of(layer, range(first, first + layer.local), device, gate_first=behind_router), first]
    if not behind_router:
        held.append(ROUTED_SCALING_FACTOR)
    tokens_at = list(full.inputs).index("hidden_states")

    def part(*inputs: torch.Tensor) -> torch.Tensor:
        if not runnable.metadata.destination_passing_style:
            return runnable(*inputs, *held)
        output = torch.empty(inputs[tokens_at].shape, dtype=torch.bfloat16, device=device)
        runnable(*inputs, *held, output)
        return output

    return part

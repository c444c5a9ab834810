"""A solution, or the reference, for the experts of one rank, whatever their number."""

import re
from collections.abc import Callable

import torch
from flashinfer_bench import Definition
from flashinfer_bench.compile import BuilderRegistry, Runnable
from harness.core.errors import UserError
from harness.operators.catalogue import GEOMETRIES, definition
from harness.operators.moe_fp8_block_scale import ROUTED_SCALING_FACTOR
from harness.packing import manifest, pack
from layer import Layer, weights_of

from definitions import moe_fp8_block_scale, moe_fp8_block_scale_routed

REFERENCE = "reference"  # in place of a solution's name
OF_A_RANK = {"num_local_experts", "experts_at_once", "model"}  # what may differ between two geometries of one layer
NUMBER = re.compile(r"\b(NUM_LOCAL_EXPERTS|kNumLocalExperts) = \d+")  # in a packed problem.py or problem.cuh


def geometry_of(name: str, layer: Layer, routed: bool) -> str:
    """The definition of this layer and form, of those that the solution serves; best with the rank's own expert count.

    Raises UserError where there is none.
    """
    inside = {key: key for key in moe_fp8_block_scale.GEOMETRIES}
    known = moe_fp8_block_scale_routed.ROUTER_INSIDE if routed else inside
    served = known if name == REFERENCE else manifest.read_manifest(name).definitions
    differ = {key: {n for n, size in GEOMETRIES[of].items() if layer.of.get(n) != size} for key, of in known.items()}
    alike = [key for key, names in differ.items() if names <= OF_A_RANK and key in served]
    if not alike:
        raise UserError(f"--solution: {name} does not serve {layer.geometry}{' behind a router' if routed else ''}")
    return min(alike, key=lambda key: GEOMETRIES[key]["num_local_experts"] != layer.local)


def build(name: str, layer: Layer, routed: bool) -> tuple[Definition, Runnable]:
    """The solution with the rank's number of experts, which may be one that no definition here has."""
    geometry, builders = geometry_of(name, layer, routed), BuilderRegistry.get_instance()
    full = definition(geometry)
    local = full.axes["num_local_experts"].model_copy(update={"value": layer.local})
    renamed = re.sub(r"_e\d+_", f"_e{layer.local}_", full.name)
    full = full.model_copy(update={"name": renamed, "axes": full.axes | {"num_local_experts": local}})
    if name == REFERENCE:
        return full, builders.build_reference(full)
    solution = pack.pack(name)[geometry]
    sources = [
        source.model_copy(update={"content": NUMBER.sub(rf"\1 = {layer.local}", source.content)})
        if source.path.rpartition("/")[2].startswith("problem.")
        else source
        for source in solution.sources
    ]
    return full, builders.build(full, solution.model_copy(update={"definition": renamed, "sources": sources}))


def local_experts(name: str, layer: Layer, rank: int, device: str, routed: bool) -> Callable[..., torch.Tensor]:
    """A function of the definition's inputs before the weights; it returns the rank's part of the layer, [T, H] bf16.

    name: a solution's, or REFERENCE. Raises UserError as `geometry_of` does.
    """
    full, runnable = build(name, layer, routed)
    first, tokens_at = rank * layer.local, list(full.inputs).index("hidden_states")
    held = [*weights_of(layer, range(first, first + layer.local), device, gate_first=routed), first]
    held += [] if routed else [ROUTED_SCALING_FACTOR]

    def experts(*inputs: torch.Tensor) -> torch.Tensor:
        if not runnable.metadata.destination_passing_style:
            return runnable(*inputs, *held)
        output = torch.empty(inputs[tokens_at].shape, dtype=torch.bfloat16, device=device)
        runnable(*inputs, *held, output)
        return output

    return experts

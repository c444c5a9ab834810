"""A model's MoE layers in device memory, each with weights, scales and routing of its own, shared by all solutions."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from harness.core.errors import CannotRun
from harness.judging import memory
from harness.judging.calling import first_tokens, random_fp8
from harness.operators import routing_model
from harness.operators.catalogue import GEOMETRIES, RENORM, definition, operator, router
from harness.operators.moe_fp8_block_scale import ROUTED_SCALING_FACTOR
from harness.operators.moe_fp8_block_scale_routed import ROUTER_INSIDE
from harness.operators.routing_kinds import offset_of

STATES = ("hidden_states", "hidden_states_scale")  # which all layers share


@dataclass(frozen=True)
class Resident:
    """layers: the definition's inputs by name, at the most tokens; those of the tokens are the same tensors in all.

    local: of each layer [T, top_k], the chosen experts counted from the rank's first one.
    """

    geometry: str
    layers: list[dict[str, object]]
    local: list[torch.Tensor]

    def inputs(self, num_tokens: int) -> list[list]:
        """Each layer's arguments for its first tokens, in the definition's order."""
        full = definition(self.geometry)

        def cut(layer: dict[str, object], names: Iterable[str]) -> dict[str, object]:
            return {name: first_tokens(layer[name], full.inputs[name].shape, num_tokens) for name in names}

        of_all, own = cut(self.layers[0], STATES), [name for name in full.inputs if name not in STATES]
        made = (of_all | cut(layer, own) for layer in self.layers)
        return [[layer[name] for name in full.inputs] for layer in made]

    def bound_ms(self, num_tokens: int) -> float:
        """The sum of the layers' roofline bounds."""
        of = GEOMETRIES[self.geometry]
        return sum(
            operator(self.geometry).bound(num_tokens, routing_model.local_counts(chosen, of), self.geometry).ms
            for chosen in (local[:num_tokens].cpu().numpy() for local in self.local)
        )


def layer_bytes(geometry: str, num_tokens: int) -> int:
    """Of one layer: its inputs but STATES."""
    sizes = memory.sizes(definition(geometry), num_tokens)
    return sum(count * width for name, (count, width) in sizes.items() if name not in STATES)


def fitting(wanted: int, geometry: str, num_tokens: int, solutions: int, free: int) -> int:
    """How many of the wanted layers fit into the free bytes beside one reference call and the solutions' graphs.

    Raises CannotRun where none fits.
    """
    full = definition(geometry)
    beside = memory.CONTEXTS + memory.reference_bytes(full, geometry, num_tokens)
    beside += solutions * memory.scratch_bytes(geometry, num_tokens)
    each = layer_bytes(geometry, num_tokens)
    if beside + each > free:
        needed = memory.gigabytes(beside + each)
        raise CannotRun(f"one layer of {geometry} needs {needed}, {memory.gigabytes(free)} are free: fewer --tokens")
    return min(wanted, (free - beside) // each)


def scales(shape: tuple[int, ...], mean: float, device: str, source: torch.Generator) -> torch.Tensor:
    """Uniform from half to one and a half times the mean."""
    return mean * (0.5 + torch.rand(shape, device=device, generator=source))


def routing(
    seed: str, geometry: str, num_tokens: int, device: str, source: torch.Generator
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Routing inputs by the workloads' model of popularity, and the chosen experts [T, top_k] of all ranks.

    Noise is drawn on the device, where it is quick; behind a router the reference's route has chosen.
    """
    inside = ROUTER_INSIDE.get(geometry, geometry)
    offset, bias = routing_model.experts(seed, of=GEOMETRIES[inside], biased=inside not in RENORM)
    noise = torch.randn(num_tokens, len(offset), device=device, generator=source)
    logits = noise + torch.from_numpy(offset).float().to(device)
    if bias is None:
        given = {"routing_logits": logits.bfloat16()}
        experts, weights = router(inside)(*given.values())
    else:
        given = {"routing_logits": logits, "routing_bias": torch.from_numpy(bias).bfloat16().to(device)}
        experts, weights = router(inside)(*given.values(), ROUTED_SCALING_FACTOR)
    return (given if inside == geometry else {"topk_ids": experts.int(), "topk_weights": weights}), experts


def make(geometry: str, layers: int, num_tokens: int, device: str) -> Resident:
    """The same numbers on every run on one kind of device."""
    full, source = definition(geometry), torch.Generator(device).manual_seed(0)
    shapes = dict(zip(full.inputs, full.get_input_shapes({"seq_len": num_tokens}), strict=True))
    hidden, intermediate = (GEOMETRIES[geometry][size] for size in ("hidden_size", "intermediate_size"))
    scalars = {"local_expert_offset": offset_of(geometry), "routed_scaling_factor": ROUTED_SCALING_FACTOR}
    shared = {
        "hidden_states": random_fp8(shapes["hidden_states"], device, source),
        "hidden_states_scale": scales(shapes["hidden_states_scale"], 2.0, device, source),
    } | {name: value for name, value in scalars.items() if name in full.inputs}
    made, local = [], []
    for at in range(layers):
        routed, experts = routing(f"served/{at}", geometry, num_tokens, device, source)
        local.append(experts - scalars["local_expert_offset"])
        weights = {
            "gemm1_weights": random_fp8(shapes["gemm1_weights"], device, source),
            "gemm1_weights_scale": scales(shapes["gemm1_weights_scale"], hidden**-0.5, device, source),
            "gemm2_weights": random_fp8(shapes["gemm2_weights"], device, source),
            "gemm2_weights_scale": scales(shapes["gemm2_weights_scale"], intermediate**-0.5, device, source),
        }
        made.append(shared | routed | weights)
    return Resident(geometry, made, local)

"""A model's MoE layers in device memory, each with weights, scales and routing of its own, shared
by all solutions.
"""

from dataclasses import dataclass

import torch

from moebench.core.errors import CannotRun
from moebench.judging.calling import first_tokens, input_bytes, random_fp8
from moebench.operators import routing_model
from moebench.operators.catalogue import (
    GEOMETRIES,
    ROUTED,
    definition,
    operator,
    router,
    router_sizes,
)
from moebench.operators.routing_kinds import offset_of

STATES = ("hidden_states", "hidden_states_scale")  # which all layers share
CONTEXT_BYTES = 2_000_000_000  # the CUDA context, code and libraries' workspaces; a guess


@dataclass(frozen=True)
class Resident:
    """layers: the definition's inputs by name, at the most tokens; those of the tokens are the same
    tensors in all.

    local: of each layer [T, top_k], the chosen experts counted from the rank's first one.
    """

    geometry: str
    layers: list[dict[str, object]]
    local: list[torch.Tensor]

    def inputs(self, num_tokens: int) -> list[list]:
        """Each layer's arguments for its first tokens, in the definition's order."""
        shapes = {name: spec.shape for name, spec in definition(self.geometry).inputs.items()}
        states = {
            name: first_tokens(self.layers[0][name], shapes[name], num_tokens) for name in STATES
        }
        made = [layer | states for layer in self.layers]
        return [
            [first_tokens(layer[name], shapes[name], num_tokens) for name in shapes]
            for layer in made
        ]

    def bound_ms(self, num_tokens: int) -> float:
        """The sum of the layers' roofline bounds."""
        of = GEOMETRIES[self.geometry]
        return sum(
            operator(self.geometry)
            .bound(num_tokens, routing_model.local_counts(chosen, of), self.geometry)
            .ms
            for chosen in (local[:num_tokens].cpu().numpy() for local in self.local)
        )


def fitting(wanted: int, geometry: str, num_tokens: int, solutions: int, free: int) -> int:
    """How many of the wanted layers fit into the free bytes beside one reference call and the
    solutions' scratch.

    Raises CannotRun where none fits.
    """
    of, full = GEOMETRIES[geometry], definition(geometry)
    hidden, intermediate = of["hidden_size"], of["intermediate_size"]
    layer = sum(
        size
        for name, size in input_bytes(full, {"seq_len": num_tokens}).items()
        if name not in STATES
    )
    # gemm1's output, h and y in bf16, a row for each of a token's experts
    scratch = 2 * num_tokens * of["top_k"] * (hidden + 3 * intermediate)
    # in fp32 three copies of the weights that are dequantised at once, and of the tokens
    reference = 24 * of["experts_at_once"] * intermediate * hidden + 24 * num_tokens * (
        hidden + intermediate
    )
    beside = CONTEXT_BYTES + solutions * scratch + reference
    if beside + layer > free:
        needed = f"needs {(beside + layer) / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        raise CannotRun(
            f"--tokens: got {num_tokens}, one layer of {geometry} {needed}; want fewer tokens"
        )
    return min(wanted, (free - beside) // layer)


def scales(
    shape: tuple[int, ...], mean: float, device: str, source: torch.Generator
) -> torch.Tensor:
    """Uniform from half to one and a half times the mean."""
    return mean * (0.5 + torch.rand(shape, device=device, generator=source))


def routing(
    seed: str, geometry: str, num_tokens: int, device: str, source: torch.Generator
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Routing inputs by the workloads' model of popularity, and the chosen experts [T, top_k] of
    all ranks.

    Noise is drawn on the device, where it is quick. Where top-k is given, the reference's router
    has chosen.
    """
    of = router_sizes(geometry)
    offset, bias = routing_model.experts(seed, of)
    noise = torch.randn(num_tokens, len(offset), device=device, generator=source)
    logits = noise + torch.from_numpy(offset).float().to(device)
    if bias is None:
        given = {"routing_logits": logits.bfloat16()}
        experts, weights = router(geometry)(*given.values())
    else:
        given = {
            "routing_logits": logits,
            "routing_bias": torch.from_numpy(bias).bfloat16().to(device),
        }
        experts, weights = router(geometry)(*given.values(), of["routed_scaling_factor"])
    return (
        given if geometry not in ROUTED else {"topk_ids": experts.int(), "topk_weights": weights}
    ), experts


def make(geometry: str, layers: int, num_tokens: int, device: str) -> Resident:
    """The same numbers on every run on one kind of device."""
    full, source = definition(geometry), torch.Generator(device).manual_seed(0)
    shapes = dict(zip(full.inputs, full.get_input_shapes({"seq_len": num_tokens}), strict=True))
    hidden, intermediate = (
        GEOMETRIES[geometry][size] for size in ("hidden_size", "intermediate_size")
    )
    scalars = {
        "local_expert_offset": offset_of(geometry),
        "routed_scaling_factor": GEOMETRIES[geometry]["routed_scaling_factor"],
    }
    shared = {
        "hidden_states": random_fp8(shapes["hidden_states"], device, source),
        "hidden_states_scale": scales(shapes["hidden_states_scale"], 2.0, device, source),
    } | {name: value for name, value in scalars.items() if name in full.inputs}
    weights = {
        "gemm1_weights": hidden**-0.5,
        "gemm2_weights": intermediate**-0.5,
    }  # and their scales' means
    made, local = [], []
    for at in range(layers):
        routed, experts = routing(f"served/{at}", geometry, num_tokens, device, source)
        local.append(experts - scalars["local_expert_offset"])
        layer = shared | routed
        for name, mean in weights.items():
            layer[name] = random_fp8(shapes[name], device, source)
            layer[f"{name}_scale"] = scales(shapes[f"{name}_scale"], mean, device, source)
        made.append(layer)
    return Resident(geometry, made, local)

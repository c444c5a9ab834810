"""A model's MoE layers in device memory, each with weights, scales and routing of its own, shared
by all solutions.
"""

import math
from dataclasses import dataclass

import torch

from moebench.core.errors import CannotRun
from moebench.judging.calling import first_tokens, input_bytes, random_fp8
from moebench.operators import catalogue
from moebench.operators.catalogue import definition, operator, router, router_sizes
from moebench.operators.fp8.layer import append_shared_experts
from moebench.operators.fp8.mxfp4 import SCALE_BIAS
from moebench.operators.layers import routed_experts
from moebench.operators.routing import trained_router
from moebench.operators.routing.kinds import offset_of

STATES = ("hidden_states", "hidden_states_scale")  # which all layers share
STATE_SCALE = 2.0  # mean of the tokens' scales
CONTEXT_BYTES = 2_000_000_000  # the CUDA context, code and libraries' workspaces; a guess


@dataclass(frozen=True)
class Resident:
    """A model's MoE layers in memory, with inputs for the most tokens that are asked for.

    layers: each one's inputs by the definition's names; STATES are the same tensors in all.
    local_experts: each one's chosen experts [T, top_k], counted from the rank's first one.
    """

    layer_key: str
    layers: list[dict[str, object]]
    local_experts: list[torch.Tensor]

    def inputs(self, num_tokens: int) -> list[list]:
        """Return each layer's arguments for its first tokens, in the definition's order."""
        specs = definition(self.layer_key).inputs
        states = {}
        for name in STATES:
            states[name] = first_tokens(self.layers[0][name], specs[name].shape, num_tokens)

        arguments = []
        for layer in self.layers:
            inputs = layer | states
            arguments.append(
                [first_tokens(inputs[name], spec.shape, num_tokens) for name, spec in specs.items()]
            )
        return arguments

    def bound_ms(self, num_tokens: int) -> float:
        """Return the sum of the layers' roofline bounds in ms."""
        sizes = catalogue.layer_sizes()[self.layer_key]
        rank = offset_of(self.layer_key) // routed_experts(sizes)
        total = 0.0
        for experts in self.local_experts:
            chosen = experts[:num_tokens].cpu().numpy()
            counts = trained_router.counts_with_shared(chosen, rank, sizes)
            total += operator(self.layer_key).bound(num_tokens, counts, self.layer_key).ms
        return total


def fitting(
    wanted_layers: int, layer_key: str, num_tokens: int, solution_count: int, free_bytes: int
) -> int:
    """Return how many of the wanted layers fit beside one reference call and solutions' scratch.

    Raises CannotRun where none fits.
    """
    sizes = catalogue.layer_sizes()[layer_key]
    hidden = sizes["hidden_size"]
    intermediate = sizes["intermediate_size"]
    inputs = input_bytes(definition(layer_key), {"seq_len": num_tokens})
    layer = sum(size for name, size in inputs.items() if name not in STATES)

    # of a solution: gemm1's output, h and y in bf16 for each expanded token
    scratch = 2 * num_tokens * sizes["top_k"] * (hidden + 3 * intermediate)
    # three fp32 copies of the tokens, and of the weights that are dequantised at once
    reference_weights = 24 * sizes["experts_at_once"] * intermediate * hidden
    reference_tokens = 24 * num_tokens * (hidden + intermediate)

    beside = CONTEXT_BYTES + solution_count * scratch + reference_weights + reference_tokens
    if beside + layer > free_bytes:
        needed = f"{(beside + layer) / 1e9:.1f} GB"
        free = f"{free_bytes / 1e9:.1f} GB"
        raise CannotRun(
            f"--tokens: got {num_tokens}, one layer of {layer_key} needs {needed}, "
            f"{free} are free; want fewer tokens"
        )
    return min(wanted_layers, (free_bytes - beside) // layer)


def make(layer_key: str, layer_count: int, num_tokens: int, device: str) -> Resident:
    """Return the layers; the numbers are the same in every run on one kind of device."""
    source = torch.Generator(device).manual_seed(0)
    full = definition(layer_key)
    shapes = dict(zip(full.inputs, full.get_input_shapes({"seq_len": num_tokens}), strict=True))
    first_expert = offset_of(layer_key)
    shared = {
        "hidden_states": random_fp8(shapes["hidden_states"], device, source),
        "hidden_states_scale": scales(shapes["hidden_states_scale"], STATE_SCALE, device, source),
        "local_expert_offset": first_expert,
        "routed_scaling_factor": router_sizes(layer_key)["routed_scaling_factor"],
    }

    # The means of the weights' scales, with which products keep their size.
    sizes = catalogue.layer_sizes()[layer_key]
    means = {
        "gemm1_weights": sizes["hidden_size"] ** -0.5,
        "gemm2_weights": sizes["intermediate_size"] ** -0.5,
    }
    layers = []
    local_experts = []
    for number in range(layer_count):
        routed = routing(f"served/{number}", layer_key, num_tokens, device, source)
        local_experts.append(routed.experts - first_expert)
        layer = shared | routed.inputs
        for name, mean in means.items():
            scale_shape = shapes[f"{name}_scale"]
            if layer_key in catalogue.mxfp4():
                layer[name] = random_bytes(shapes[name], device, source)
                layer[f"{name}_scale"] = powers_of_two(scale_shape, mean, device, source)
            else:
                layer[name] = random_fp8(shapes[name], device, source)
                layer[f"{name}_scale"] = scales(scale_shape, mean, device, source)
        layers.append(layer)
    return Resident(layer_key, layers, local_experts)


def scales(
    shape: tuple[int, ...], mean: float, device: str, source: torch.Generator
) -> torch.Tensor:
    """Return scales, uniform from half to one and a half times the mean."""
    return mean * (0.5 + torch.rand(shape, device=device, generator=source))


def random_bytes(shape: tuple[int, ...], device: str, source: torch.Generator) -> torch.Tensor:
    """Return int8 of any value: two weights of MXFP4 each."""
    return torch.randint(-128, 128, shape, dtype=torch.int8, device=device, generator=source)


def powers_of_two(
    shape: tuple[int, ...], mean: float, device: str, source: torch.Generator
) -> torch.Tensor:
    """Return scales of MXFP4, int8 for E8M0: a power of two at or below the mean, or its half."""
    exponent = SCALE_BIAS + math.floor(math.log2(mean))
    halved = torch.randint(0, 2, shape, dtype=torch.int8, device=device, generator=source)
    return exponent - halved


@dataclass(frozen=True)
class Routing:
    """A layer's routing inputs by name, and the experts [T, top_k] that they choose."""

    inputs: dict[str, torch.Tensor]
    experts: torch.Tensor


def routing(
    seed: str, layer_key: str, num_tokens: int, device: str, source: torch.Generator
) -> Routing:
    """Return a layer's routing by the workloads' model of popularity.

    Noise is drawn on the device, where it is quick. Where top-k is given, the reference's router
    has chosen.
    """
    sizes = router_sizes(layer_key)
    offset, bias = trained_router.experts(seed, sizes)
    noise = torch.randn(num_tokens, len(offset), device=device, generator=source)
    logits = noise + torch.from_numpy(offset).float().to(device)

    if bias is None:
        inputs = {"routing_logits": logits.bfloat16()}
        experts, weights = router(layer_key)(inputs["routing_logits"])
    else:
        bias = torch.from_numpy(bias).bfloat16().to(device)
        inputs = {"routing_logits": logits, "routing_bias": bias}
        experts, weights = router(layer_key)(logits, bias, sizes["routed_scaling_factor"])

    if layer_key in (*catalogue.routed(), *catalogue.mxfp4()):
        inputs = {"topk_ids": experts.int(), "topk_weights": weights}
        append_shared_experts(inputs, offset_of(layer_key), sizes, seed)
        experts = inputs["topk_ids"]
    return Routing(inputs, experts)

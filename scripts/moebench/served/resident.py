"""A model's MoE layers in device memory, each with weights, scales and routing of its own, shared
by all solutions.
"""

from dataclasses import dataclass

import torch

from moebench.core.errors import CannotRun
from moebench.judging.calling import first_tokens, input_bytes, random_fp8
from moebench.operators import catalogue
from moebench.operators.catalogue import definition, operator, router, router_sizes
from moebench.operators.routing import model as routing_model
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
            inputs = []
            for name, spec in specs.items():
                value = states.get(name, layer[name])
                inputs.append(first_tokens(value, spec.shape, num_tokens))
            arguments.append(inputs)
        return arguments

    def bound_ms(self, num_tokens: int) -> float:
        """Return the sum of the layers' roofline bounds in ms."""
        sizes = catalogue.layer_sizes()[self.layer_key]
        total = 0.0
        for experts in self.local_experts:
            chosen = experts[:num_tokens].cpu().numpy()
            counts = routing_model.local_counts(chosen, sizes)
            total += operator(self.layer_key).bound(num_tokens, counts, self.layer_key).ms
        return total


def fitting(
    wanted_layers: int, layer_key: str, num_tokens: int, solution_count: int, free_bytes: int
) -> int:
    """Return how many of the wanted layers fit beside one reference call and solutions' scratch.

    Raises CannotRun where none fits.
    """
    layer = layer_bytes(layer_key, num_tokens)
    scratch = solution_count * scratch_bytes(layer_key, num_tokens)
    beside = CONTEXT_BYTES + scratch + reference_bytes(layer_key, num_tokens)
    if beside + layer > free_bytes:
        needed = f"{(beside + layer) / 1e9:.1f} GB"
        free = f"{free_bytes / 1e9:.1f} GB"
        raise CannotRun(
            f"--tokens: got {num_tokens}, one layer of {layer_key} needs {needed}, "
            f"{free} are free; want fewer tokens"
        )
    return min(wanted_layers, (free_bytes - beside) // layer)


def layer_bytes(layer_key: str, num_tokens: int) -> int:
    """Return the bytes of a layer's inputs without those that all layers share."""
    sizes = input_bytes(definition(layer_key), {"seq_len": num_tokens})
    return sum(size for name, size in sizes.items() if name not in STATES)


def scratch_bytes(layer_key: str, num_tokens: int) -> int:
    """Return what a solution may need: gemm1's output, h and y in bf16 for each expanded token."""
    sizes = catalogue.layer_sizes()[layer_key]
    columns = sizes["hidden_size"] + 3 * sizes["intermediate_size"]
    return 2 * num_tokens * sizes["top_k"] * columns


def reference_bytes(layer_key: str, num_tokens: int) -> int:
    """Return what a reference call needs.

    That is three fp32 copies of the tokens and of the weights that are dequantised at once.
    """
    sizes = catalogue.layer_sizes()[layer_key]
    hidden = sizes["hidden_size"]
    intermediate = sizes["intermediate_size"]
    weights = 24 * sizes["experts_at_once"] * intermediate * hidden
    tokens = 24 * num_tokens * (hidden + intermediate)
    return weights + tokens


def make(layer_key: str, layer_count: int, num_tokens: int, device: str) -> Resident:
    """Return the layers; the numbers are the same in every run on one kind of device."""
    source = torch.Generator(device).manual_seed(0)
    full = definition(layer_key)
    shapes = dict(zip(full.inputs, full.get_input_shapes({"seq_len": num_tokens}), strict=True))
    first_expert = offset_of(layer_key)
    scalars = {
        "local_expert_offset": first_expert,
        "routed_scaling_factor": router_sizes(layer_key)["routed_scaling_factor"],
    }
    shared = shared_inputs(shapes, scalars, device, source)

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
            layer[name] = random_fp8(shapes[name], device, source)
            layer[f"{name}_scale"] = scales(shapes[f"{name}_scale"], mean, device, source)
        layers.append(layer)
    return Resident(layer_key, layers, local_experts)


def shared_inputs(
    shapes: dict[str, tuple], scalars: dict[str, object], device: str, source: torch.Generator
) -> dict[str, object]:
    """Return what all layers share: the tokens, their scales, and the definition's scalars."""
    inputs = {
        "hidden_states": random_fp8(shapes["hidden_states"], device, source),
        "hidden_states_scale": scales(shapes["hidden_states_scale"], STATE_SCALE, device, source),
    }
    for name, value in scalars.items():
        if name in shapes:
            inputs[name] = value
    return inputs


def scales(
    shape: tuple[int, ...], mean: float, device: str, source: torch.Generator
) -> torch.Tensor:
    """Return scales, uniform from half to one and a half times the mean."""
    return mean * (0.5 + torch.rand(shape, device=device, generator=source))


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
    offset, bias = routing_model.experts(seed, sizes)
    noise = torch.randn(num_tokens, len(offset), device=device, generator=source)
    logits = noise + torch.from_numpy(offset).float().to(device)

    if bias is None:
        inputs = {"routing_logits": logits.bfloat16()}
        experts, weights = router(layer_key)(inputs["routing_logits"])
    else:
        bias = torch.from_numpy(bias).bfloat16().to(device)
        inputs = {"routing_logits": logits, "routing_bias": bias}
        experts, weights = router(layer_key)(logits, bias, sizes["routed_scaling_factor"])

    if layer_key in catalogue.routed():
        inputs = {"topk_ids": experts.int(), "topk_weights": weights}
    return Routing(inputs, experts)

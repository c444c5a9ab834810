"""A model's MoE layers resident in device memory, each with weights, scales and routing of its own.

`moebench served` asks `fitting` how many layers fit, and `make` makes them. rounds.py times all
solutions on the same layers.
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
from moebench.operators.layers import Sizes, routed_experts
from moebench.operators.operator import Tensors
from moebench.operators.routing import trained_router
from moebench.operators.routing.kinds import offset_of

# inputs with the tokens, shared by all layers
STATES = ("hidden_states", "hidden_states_scale")
STATE_SCALE = 2.0  # mean of the tokens' scales
FP32_BYTES = 4
# of the CUDA context, code and libraries' workspaces; a guess
CONTEXT_BYTES = 2_000_000_000


@dataclass(frozen=True)
class Resident:
    """A model's MoE layers in memory, with inputs for the greatest token count.

    layers: for each layer, name in the definition -> input; all have the same tensors of STATES.
    local_experts: for each layer, the tokens' experts [T, top_k], numbered from the rank's first.
    """

    layer_key: str
    layers: list[dict[str, object]]
    local_experts: list[torch.Tensor]

    def inputs(self, num_tokens: int) -> list[list]:
        """Return each layer's arguments for the first num_tokens tokens, in the definition's
        order.
        """
        specs = definition(self.layer_key).inputs
        first_layer = self.layers[0]
        states = {}
        for name in STATES:
            shape = specs[name].shape
            states[name] = first_tokens(first_layer[name], shape, num_tokens)

        arguments = []
        for layer in self.layers:
            inputs = layer | states  # STATES are cut once for all layers
            first = []
            for name, spec in specs.items():
                first.append(first_tokens(inputs[name], spec.shape, num_tokens))
            arguments.append(first)
        return arguments

    def bound_ms(self, num_tokens: int) -> float:
        """Return the sum of the layers' roofline bounds in ms."""
        sizes = catalogue.layer_sizes()[self.layer_key]
        rank = offset_of(self.layer_key) // routed_experts(sizes)
        layer = operator(self.layer_key)
        total = 0.0
        for experts in self.local_experts:
            chosen = experts[:num_tokens].cpu().numpy()
            counts = trained_router.counts_with_shared(chosen, rank, sizes)
            bound = layer.bound(num_tokens, counts, self.layer_key)
            total += bound.ms
        return total


def fitting(
    wanted_layers: int,
    layer_key: str,
    num_tokens: int,
    solution_count: int,
    free_bytes: int,
) -> int:
    """Return how many of the wanted layers fit beside one reference call and solutions' scratch.

    Raises CannotRun where none fits.
    """
    sizes = catalogue.layer_sizes()[layer_key]
    inputs = input_bytes(definition(layer_key), {"seq_len": num_tokens})
    layer_inputs = inputs.keys() - STATES
    layer_bytes = sum(inputs[name] for name in layer_inputs)

    # a solution's scratch, in bf16: for a token and one of its experts gemm1's output (two
    # intermediate sizes wide), the intermediate and gemm2's output
    scratch_width = sizes["hidden_size"] + 3 * sizes["intermediate_size"]
    scratch_bytes = 2 * num_tokens * sizes["top_k"] * scratch_width
    other_bytes = CONTEXT_BYTES + reference_bytes(sizes, num_tokens)
    other_bytes += solution_count * scratch_bytes
    fit = (free_bytes - other_bytes) // layer_bytes
    if fit < 1:
        needed = f"{(other_bytes + layer_bytes) / 1e9:.1f} GB"
        free = f"{free_bytes / 1e9:.1f} GB"
        raise CannotRun(
            f"--tokens: got {num_tokens}, one layer of {layer_key} needs {needed}, "
            f"{free} are free; want fewer tokens"
        )
    return min(wanted_layers, fit)


def reference_bytes(sizes: Sizes, num_tokens: int) -> int:
    """Return how many bytes a call of the reference takes at most beside its inputs.

    It dequantises the weights of some experts at once, into three fp32 tensors as large as their
    gemm1 weights: a scale for each element, the values and the product. For the tokens it has at
    most six fp32 tensors of each width: the inputs, the output, an expert's tokens and
    intermediate results of these.
    """
    hidden = sizes["hidden_size"]
    intermediate = sizes["intermediate_size"]
    gemm1_weights = sizes["experts_at_once"] * 2 * intermediate * hidden
    tokens = num_tokens * (hidden + intermediate)
    return FP32_BYTES * (3 * gemm1_weights + 6 * tokens)


def make(layer_key: str, layer_count: int, num_tokens: int, device: str) -> Resident:
    """Return the layers, with inputs for num_tokens tokens.

    All values are drawn, and are the same in every run on one kind of device.
    """
    full = definition(layer_key)
    input_shapes = full.get_input_shapes({"seq_len": num_tokens})
    shapes = dict(zip(full.inputs, input_shapes, strict=True))
    generator = torch.Generator(device).manual_seed(0)
    first_expert = offset_of(layer_key)
    common_inputs = {
        "hidden_states": random_fp8(shapes["hidden_states"], device, generator),
        "hidden_states_scale": scales(
            shapes["hidden_states_scale"], STATE_SCALE, generator
        ),
        "local_expert_offset": first_expert,
        "routed_scaling_factor": router_sizes(layer_key)["routed_scaling_factor"],
    }

    layers = []
    local_experts = []
    for number in range(layer_count):
        routed = routing(f"served/{number}", layer_key, num_tokens, generator)
        local_experts.append(routed.experts - first_expert)
        layer_weights = weights(layer_key, shapes, generator)
        layers.append(common_inputs | routed.inputs | layer_weights)
    return Resident(layer_key, layers, local_experts)


def weights(
    layer_key: str, shapes: dict[str, tuple[int, ...]], generator: torch.Generator
) -> Tensors:
    """Return a layer's weights and their scales.

    The scales' mean is 1 / sqrt(K), so that a GEMM's outputs, sums over K products, are about as
    large as its inputs.
    """
    sizes = catalogue.layer_sizes()[layer_key]
    k_sizes = {
        "gemm1_weights": sizes["hidden_size"],
        "gemm2_weights": sizes["intermediate_size"],
    }
    tensors = {}
    for name, k in k_sizes.items():
        mean = k**-0.5
        scale = f"{name}_scale"
        if layer_key in catalogue.mxfp4():
            # a byte holds two FP4 weights, and every byte is valid
            tensors[name] = integers(-128, 128, shapes[name], generator)
            # each scale stands for the power of two at or below the mean, or for half of it
            exponent = SCALE_BIAS + math.floor(math.log2(mean))
            tensors[scale] = exponent - integers(0, 2, shapes[scale], generator)
        else:
            tensors[name] = random_fp8(shapes[name], generator.device, generator)
            tensors[scale] = scales(shapes[scale], mean, generator)
    return tensors


def scales(
    shape: tuple[int, ...], mean: float, generator: torch.Generator
) -> torch.Tensor:
    """Return scales, uniform from half to one and a half times the mean."""
    random = torch.rand(shape, device=generator.device, generator=generator)
    return mean * (0.5 + random)


def integers(
    start: int, end: int, shape: tuple[int, ...], generator: torch.Generator
) -> torch.Tensor:
    """Return int8 from start to below end."""
    return torch.randint(
        start,
        end,
        shape,
        dtype=torch.int8,
        device=generator.device,
        generator=generator,
    )


@dataclass(frozen=True)
class Routing:
    """A layer's routing inputs by name, and the experts [T, top_k] that they choose."""

    inputs: Tensors
    experts: torch.Tensor


def routing(
    seed: str, layer_key: str, num_tokens: int, generator: torch.Generator
) -> Routing:
    """Return a layer's routing, drawn like the workloads': a token's logit of an expert is the
    expert's popularity plus noise.

    The seed decides popularities; the noise is drawn on the device, where that is quick. A
    definition with top-k among its inputs gets what the reference's router chooses by these logits.
    """
    sizes = router_sizes(layer_key)
    device = generator.device
    popularity, bias = trained_router.mean_logits_and_bias(seed, sizes)
    noise = torch.randn(num_tokens, len(popularity), device=device, generator=generator)
    logits = noise + torch.from_numpy(popularity).float().to(device)

    if bias is None:
        inputs = {"routing_logits": logits.bfloat16()}
        factors = ()
    else:
        bias = torch.from_numpy(bias).bfloat16().to(device)
        inputs = {"routing_logits": logits, "routing_bias": bias}
        factors = (sizes["routed_scaling_factor"],)
    experts, expert_weights = router(layer_key)(*inputs.values(), *factors)

    if catalogue.takes_top_k(layer_key):
        inputs = {"topk_ids": experts.int(), "topk_weights": expert_weights}
        append_shared_experts(inputs, offset_of(layer_key), sizes, seed)
        experts = inputs["topk_ids"]
    return Routing(inputs, experts)

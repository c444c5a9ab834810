"""FP8 block-scale mixture of experts with softmax routing over the chosen experts, all experts on
one GPU.

`run` is the reference that every solution is judged against, layers.toml has the sizes it is judged
at. Only routing and inputs differ from moe_fp8_block_scale. Router logits are bfloat16; there is no
bias.
"""

import torch
from flashinfer_bench import Definition, Trace, Workload

from moebench.operators import layers
from moebench.operators import swiglu as activations
from moebench.operators.case import uuid_of
from moebench.operators.fp8_arguments import RENORM_ROUTING, inputs, outputs
from moebench.operators.fp8_layer import (
    dequantize,
    layer_bound,
    local_experts,
    self_contained,
    size_suffix,
    slice_of_experts,
    tags,
    without_num_experts,
)
from moebench.operators.fp8_workloads import (
    MODEL_TOKENS,
    MoeCase,
    layer_trace,
    router_outputs,
    stored_scales,
)
from moebench.operators.layers import Sizes
from moebench.operators.roofline import Bound, Counts
from moebench.operators.routing import model as routing_model

TOP_K = 8  # of the first layer

ROUTER_SIZES = ("top_k",)  # constants of `route`


def route(logits):
    """Choose the TOP_K largest logits per token; return their indices and weights, both [T, TOP_K].

    Weights, float32, are the softmax over the chosen logits alone: the same as a softmax over all
    experts, normalised again over the chosen ones.
    """
    chosen, experts = logits.to(torch.float32).topk(TOP_K, dim=-1)
    return experts, torch.softmax(chosen, dim=-1)


@torch.no_grad()
def run(
    routing_logits,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
):
    """Return output [seq_len, hidden_size] bfloat16: the whole layer.

    Shapes and dtypes of the arguments are in the definition that carries this source.
    """
    experts, weights = route(routing_logits)
    x = dequantize(hidden_states, hidden_states_scale.t(), row_block=1)
    return local_experts(
        x, gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, experts, weights
    )


@layers.cached
def layer_sizes() -> dict[str, Sizes]:
    """Return key -> sizes, of every layer of this form: those whose rank has all experts."""
    on_ranks = layers.layer_sizes("renorm")
    return {key: sizes for key, sizes in on_ranks.items() if layers.has_all_experts(sizes)}


def small() -> tuple[str, ...]:
    """Return the keys that are for machines without a GPU."""
    return layers.small("renorm")


def definition_name(layer_key: str) -> str:
    """Return the name of the FIB Definition of a key."""
    return name_of(layer_sizes()[layer_key])


def name_of(sizes: Sizes) -> str:
    """Return the name of the FIB Definition of a layer of these sizes."""
    return f"moe_fp8_block_scale_renorm_topk{sizes['top_k']}_{size_suffix(sizes)}"


def reference_source(layer_key: str) -> str:
    """Return one self-contained module with `run`, for the `reference` field of the JSON."""
    names = (*ROUTER_SIZES, "experts_at_once")
    return self_contained(layer_sizes()[layer_key], names, (dequantize, route, local_experts, run))


def definition(layer_key: str) -> Definition:
    """Return the FIB Definition of a key."""
    sizes = layer_sizes()[layer_key]
    axes, constraints = without_num_experts(sizes)
    return Definition(
        name=definition_name(layer_key),
        op_type="moe",
        description=(
            "FP8 block-scale mixture of experts with softmax over the top-k logits, all experts on "
            f"one GPU: route, GEMM1, {activations.description(sizes)}, GEMM2, weighted sum."
            + slice_of_experts(sizes)
        ),
        tags=tags(layer_key, sizes),
        axes=axes,
        constraints=constraints,
        inputs=inputs(RENORM_ROUTING),
        outputs=outputs(),
        reference=reference_source(layer_key),
    )


def hard_cases(sizes: Sizes) -> list[tuple]:
    """Return name, T, rank's first expert, raised and scales of cases that are easily got wrong.

    Every expert is local, so the first is 0.
    """
    experts = sizes["num_experts"]
    apart = experts // sizes["top_k"]
    same = {expert: 9.0 if expert % apart == 0 else -3.0 for expert in range(experts)}
    return [
        ("one-token", 1, 0, {}, "random"),
        ("no-tokens", 0, 0, {}, "random"),
        ("same-experts", 33, 0, same, "random"),
        ("one-expert-takes-all", 70, 0, {3: 9.0}, "random"),
        ("odd-length", 37, 0, {}, "random"),
        ("harsh-scales", 24, 0, {}, "harsh"),
        ("harsh-scales-one-token", 1, 0, {3: 4.0}, "harsh"),
    ]


def cases(layer_key: str) -> list[MoeCase]:
    """Return the workloads of a key in the order in which they are run."""
    if layer_key in small():
        listed = hard_cases(layer_sizes()[layer_key])
    else:
        listed = [(f"T={tokens}", tokens, 0) for tokens in MODEL_TOKENS]

    definition = definition_name(layer_key)
    return [MoeCase(layer_key, name, uuid_of(definition, name), *rest) for name, *rest in listed]


def tensors(case: MoeCase) -> dict[str, torch.Tensor]:
    """Return what goes into a case's safetensors file."""
    sizes = layer_sizes()[case.layer_key]
    return router_outputs(case, sizes) | stored_scales(case, sizes)


def record(case: MoeCase) -> Trace:
    """Return a case as a FIB workload trace."""
    return layer_trace(case, definition_name(case.layer_key), ["routing_logits"], {})


def counts(workload: Workload, stored: dict[str, torch.Tensor], layer_key: str) -> Counts | None:
    """Return a workload's counts, or None where it lacks the routing."""
    if "routing_logits" not in stored:
        return None
    sizes = layer_sizes()[layer_key]
    logits = stored["routing_logits"].to(torch.float32).numpy()
    return routing_model.local_counts(routing_model.select(logits, None, sizes), sizes)


def bound(seq_len: int, counts: Counts, layer_key: str) -> Bound:
    """Return the roofline bound of a workload with these counts."""
    sizes = layer_sizes()[layer_key]
    return layer_bound(seq_len, counts, 2 * seq_len * sizes["num_experts"], sizes)

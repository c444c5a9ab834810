"""The layer of moe_fp8_block_scale with shared experts, which every token takes beside those that
its router chooses.

They are the last NUM_SHARED_EXPERTS of a rank's weights, the layout in which engines fuse them, and
the arguments are the same as without. Logits and bias know nothing of them, and what the router
scales its weights with does not touch them.

Tensor-parallel ranks have a slice of a shared expert as of any other. Expert-parallel ranks have
each the whole of it, and token t takes it on rank t % ranks alone: so outputs add up, as those of
other experts do, and with many tokens a rank multiplies a part of them. vLLM does so on ROCm. (With
SGLang every rank takes it for every token and weighs it with 1 / ranks: at 4096 tokens, as many
rows again as all experts of a rank have.)
"""

import torch
from flashinfer_bench import Definition, Trace, Workload

from moebench.operators import layers, moe_fp8_block_scale
from moebench.operators import swiglu as activations
from moebench.operators.case import uuid_of
from moebench.operators.definition_parts import const
from moebench.operators.fp8_layer import (
    CONSTRAINTS,
    OUTPUT,
    axes,
    dequantize,
    local_experts,
    self_contained,
    slice_of_experts,
    tags,
)
from moebench.operators.fp8_workloads import (
    MODEL_TOKENS,
    MoeCase,
    router_outputs,
    stored_scales,
)
from moebench.operators.layers import Sizes, expert_ranks, routed_experts
from moebench.operators.moe_fp8_block_scale import route
from moebench.operators.roofline import Bound, Counts
from moebench.operators.routing import model as routing_model

NUM_SHARED_EXPERTS = 1  # of DeepSeek-V3; `reference_source` has every other layer's
FIRST_RANK = 0  # of the workloads: it has shared experts to compute at every number of tokens

ROUTER_SIZES = moe_fp8_block_scale.ROUTER_SIZES


def add_shared_experts(local, weights, first_expert, num_experts, num_local_experts):
    """Append the shared experts to a token's: [T, TOP_K] becomes [T, TOP_K + NUM_SHARED_EXPERTS].

    Token t takes them on rank t % ranks, and has -1 on others. Routed experts of other ranks become
    -1, too: their numbers may be those of shared ones.
    """
    num_tokens = local.shape[0]
    num_routed = num_local_experts - NUM_SHARED_EXPERTS
    local = torch.where(local < num_routed, local, -1)

    ranks = num_experts // num_routed
    token = torch.arange(num_tokens, device=local.device).unsqueeze(1)
    here = token % ranks == first_expert // num_routed

    shared = torch.arange(num_routed, num_local_experts, device=local.device)
    local = torch.cat([local, torch.where(here, shared, -1)], dim=1)
    return local, torch.cat([weights, weights.new_ones(num_tokens, NUM_SHARED_EXPERTS)], dim=1)


@torch.no_grad()
def run(
    routing_logits,
    routing_bias,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
    routed_scaling_factor,
):
    """Return output [seq_len, hidden_size] bfloat16: the local experts' share of the layer, and the
    shared experts'.

    Shapes and dtypes of the arguments are in the definition that carries this source. The two
    scalars may be Python numbers or tensors of one element.
    """
    first_expert = int(local_expert_offset)
    num_experts = routing_logits.shape[1]
    experts, weights = route(routing_logits, routing_bias, float(routed_scaling_factor))
    local, weights = add_shared_experts(
        experts - first_expert, weights, first_expert, num_experts, len(gemm1_weights)
    )
    x = dequantize(hidden_states, hidden_states_scale.t(), row_block=1)
    return local_experts(
        x, gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, local, weights
    )


def layer_sizes() -> dict[str, Sizes]:
    """Return key -> sizes, of every layer of this form."""
    return layers.with_shared("sigmoid-bias")


def small() -> tuple[str, ...]:
    """Return the keys that are for machines without a GPU."""
    return layers.small_with_shared("sigmoid-bias")


def definition_name(layer_key: str) -> str:
    """Return the name of the FIB Definition of a key."""
    return moe_fp8_block_scale.name_of(layer_sizes()[layer_key])


def reference_source(layer_key: str) -> str:
    """Return one self-contained module with `run`, for the `reference` field of the JSON."""
    names = (*ROUTER_SIZES, "experts_at_once", "num_shared_experts")
    functions = (dequantize, route, local_experts, add_shared_experts, run)
    return self_contained(layer_sizes()[layer_key], names, functions)


def definition(layer_key: str) -> Definition:
    """Return the FIB Definition of a key."""
    sizes = layer_sizes()[layer_key]
    ranks = expert_ranks(sizes)
    shared = sizes["num_shared_experts"]

    all_axes = axes(sizes)
    all_axes["num_local_experts"] = const(
        sizes["num_local_experts"],
        "Experts that this rank holds, the shared ones behind all others.",
    )
    all_axes["num_shared_experts"] = const(shared, "Experts that every token takes.")
    constraints = [line for line in CONSTRAINTS if not line.startswith("num_local_experts")]
    constraints.append("num_local_experts <= num_experts + num_shared_experts")

    return Definition(
        name=definition_name(layer_key),
        op_type="moe",
        description=(
            "FP8 block-scale mixture of experts with DeepSeek-V3 routing and shared experts, as "
            f"seen by one expert-parallel rank of {ranks}: route, GEMM1, "
            f"{activations.description(sizes)}, GEMM2, weighted sum over the local experts. Every "
            "token takes the shared experts with weight 1, which routed_scaling_factor does not "
            f"scale: token t on rank t % {ranks}, as all of {ranks} have them and outputs add up."
            + slice_of_experts(sizes)
        ),
        tags=[*tags(layer_key, sizes), f"shared_experts:{shared}"],
        axes=all_axes,
        constraints=constraints,
        inputs=moe_fp8_block_scale.inputs(),
        outputs=OUTPUT,
        reference=reference_source(layer_key),
    )


def cases(layer_key: str) -> list[MoeCase]:
    """Return the workloads of a key in the order in which they are run."""
    sizes = layer_sizes()[layer_key]
    if layer_key in small():
        listed = moe_fp8_block_scale.hard_cases(sizes)
    else:
        listed = [(f"T={tokens}", tokens, FIRST_RANK) for tokens in MODEL_TOKENS]

    name = definition_name(layer_key)
    return [MoeCase(layer_key, case, uuid_of(name, case), *rest) for case, *rest in listed]


def tensors(case: MoeCase) -> dict[str, torch.Tensor]:
    """Return what goes into a case's safetensors file."""
    sizes = layer_sizes()[case.layer_key]
    return router_outputs(case, sizes) | stored_scales(case, sizes)


def record(case: MoeCase) -> Trace:
    """Return a case as a FIB workload trace."""
    sizes = layer_sizes()[case.layer_key]
    return moe_fp8_block_scale.record_of(case, definition_name(case.layer_key), sizes)


def counts(workload: Workload, stored: dict[str, torch.Tensor], layer_key: str) -> Counts | None:
    """Return a workload's counts, or None where it lacks the routing. Raises ValueError for logits
    of another width.
    """
    sizes = layer_sizes()[layer_key]
    chosen = moe_fp8_block_scale.local_choice(workload, stored, sizes)
    if chosen is None:
        return None
    offset = int(workload.inputs["local_expert_offset"].value)
    return routing_model.counts_with_shared(chosen, offset // routed_experts(sizes), sizes)


def bound(seq_len: int, counts: Counts, layer_key: str) -> Bound:
    """Return the roofline bound of a workload with these counts."""
    return moe_fp8_block_scale.bound_of(seq_len, counts, layer_sizes()[layer_key])

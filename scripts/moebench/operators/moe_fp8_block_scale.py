"""FP8 block-scale mixture of experts with DeepSeek-V3's routing, as one expert-parallel rank
computes it.

`run` is the reference that every solution is judged against, layers.toml has the sizes it is judged
at. `moebench data --write` writes FIB's JSON of each key, whose `reference` is assembled from the
functions here and in fp8_layer.py and that layer's constants.
"""

import csv

import torch
from flashinfer_bench import Definition, Trace, Workload

from moebench.operators import layers
from moebench.operators import swiglu as activations
from moebench.operators.case import uuid_of
from moebench.operators.fp8_arguments import DS_ROUTING, inputs, outputs
from moebench.operators.fp8_layer import (
    CONSTRAINTS,
    axes,
    dequantize,
    layer_bound,
    local_experts,
    self_contained,
    size_suffix,
    slice_of_experts,
    tags,
)
from moebench.operators.fp8_workloads import (
    MODEL_TOKENS,
    MoeCase,
    layer_trace,
    middle_rank,
    router_outputs,
    stored_scales,
)
from moebench.operators.layers import Sizes
from moebench.operators.roofline import Bound, Counts
from moebench.operators.routing import model as routing_model

# Of the first layer; `reference_source` has every other's. Routing is fixed by the model and cannot
# be read off a tensor's shape.
TOP_K = 8
NUM_GROUPS = 8
KEPT_GROUPS = 4

ROUTER_SIZES = ("top_k", "num_groups", "kept_groups")  # constants of `route`
FIRST = "full"  # the key whose workloads the public data set has


def route(logits, bias, routed_scaling_factor):
    """Choose TOP_K experts per token; return their indices and weights, both [T, TOP_K], weights in
    float32.

    A group of experts counts by its best two, and only the best KEPT_GROUPS groups are open. The
    bias helps to select, but the weights come from the scores without it.
    """
    num_tokens, num_experts = logits.shape
    scores = torch.sigmoid(logits.to(torch.float32))
    biased = scores + bias.to(torch.float32)

    groups = biased.view(num_tokens, NUM_GROUPS, num_experts // NUM_GROUPS)
    group_scores = groups.topk(2, dim=-1).values.sum(dim=-1)
    kept = group_scores.topk(KEPT_GROUPS, dim=-1).indices
    closed = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, kept, False)
    candidates = groups.masked_fill(closed.unsqueeze(-1), float("-inf")).flatten(1)

    experts = candidates.topk(TOP_K, dim=-1).indices
    weights = scores.gather(1, experts)
    weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * routed_scaling_factor
    return experts, weights


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
    """Return output [seq_len, hidden_size] bfloat16: the local experts' share of the layer.

    Shapes and dtypes of the arguments are in the definition that carries this source. The two
    scalars may be Python numbers or tensors of one element.
    """
    experts, weights = route(routing_logits, routing_bias, float(routed_scaling_factor))
    local = experts - int(local_expert_offset)
    x = dequantize(hidden_states, hidden_states_scale.t(), row_block=1)
    return local_experts(
        x, gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, local, weights
    )


def layer_sizes() -> dict[str, Sizes]:
    """Return key -> sizes, of every layer of this form."""
    return layers.layer_sizes("sigmoid-bias")


def small() -> tuple[str, ...]:
    """Return the keys that are for machines without a GPU."""
    return layers.small("sigmoid-bias")


def definition_name(layer_key: str) -> str:
    """Return the name of the FIB Definition of a key."""
    return name_of(layer_sizes()[layer_key])


def name_of(sizes: Sizes) -> str:
    """Return the name of the FIB Definition of a layer of these sizes."""
    groups = f"ng{sizes['num_groups']}_kg{sizes['kept_groups']}"
    routing = f"ds_routing_topk{sizes['top_k']}_{groups}"
    return f"moe_fp8_block_scale_{routing}_{size_suffix(sizes)}"


def reference_source(layer_key: str) -> str:
    """Return one self-contained module with `run`, for the `reference` field of the JSON."""
    names = (*ROUTER_SIZES, "experts_at_once")
    return self_contained(layer_sizes()[layer_key], names, (dequantize, route, local_experts, run))


def definition(layer_key: str) -> Definition:
    """Return the FIB Definition of a key."""
    sizes = layer_sizes()[layer_key]
    ranks = sizes["num_experts"] // sizes["num_local_experts"]
    return Definition(
        name=definition_name(layer_key),
        op_type="moe",
        description=(
            "FP8 block-scale mixture of experts with DeepSeek-V3 routing, as seen by one "
            f"expert-parallel rank of {ranks}: route, GEMM1, {activations.description(sizes)}, "
            "GEMM2, weighted sum over the local experts." + slice_of_experts(sizes)
        ),
        tags=tags(layer_key, sizes),
        axes=axes(sizes),
        constraints=CONSTRAINTS,
        inputs=inputs(DS_ROUTING),
        outputs=outputs(),
        reference=reference_source(layer_key),
    )


def public_cases() -> list[MoeCase]:
    """Return the cases of FIRST whose uuid, tokens and rank the public data set has."""
    file = layers.definitions_folder() / "public_workloads.csv"
    cases = []
    with file.open(encoding="utf-8", newline="") as lines:
        for uuid, tokens, offset in list(csv.reader(lines))[1:]:
            cases.append(MoeCase(FIRST, f"T={tokens}", uuid, int(tokens), int(offset)))
    return cases


def hard_cases(sizes: Sizes) -> list[tuple]:
    """Return name, T, rank's first expert, raised and scales of cases that are easily got wrong."""
    experts = sizes["num_experts"]
    local = sizes["num_local_experts"]
    ranks = experts // local
    eighth = [ranks * n // 8 * local for n in range(8)]  # first experts of ranks, first to last

    # Lowering everybody else closes the other groups, or they would be chosen in spite of one
    # strong expert: a group counts by its best two.
    favourites = range(eighth[2], eighth[2] + local, local // sizes["top_k"])
    same_eight = {expert: 9.0 if expert in favourites else -3.0 for expert in range(experts)}

    rank = range(eighth[4], eighth[4] + local)
    takes_all = {expert: -9.0 if expert in rank else -3.0 for expert in range(experts)}
    takes_all[rank[3]] = 9.0

    none_local = dict.fromkeys(range(eighth[3], eighth[3] + local), -9.0)
    return [
        ("one-token", 1, eighth[1] or local, {}, "random"),
        ("no-tokens", 0, 0, {}, "random"),
        ("none-local", 5, eighth[3], none_local, "random"),
        ("same-eight-local", 33, eighth[2], same_eight, "random"),
        ("one-expert-takes-all", 70, eighth[4], takes_all, "random"),
        ("first-rank", 16, 0, {}, "random"),
        ("last-rank-odd-length", 37, experts - local, {}, "random"),
        ("offset-across-groups", 19, experts * 77 // 256, {}, "random"),
        ("harsh-scales", 24, eighth[5], {}, "harsh"),
        ("harsh-scales-one-token", 1, eighth[6], {eighth[6] + 3: 4.0}, "harsh"),
    ]


def cases(layer_key: str) -> list[MoeCase]:
    """Return the workloads of a key in the order in which they are run."""
    if layer_key == FIRST:
        return public_cases()

    sizes = layer_sizes()[layer_key]
    if layer_key in small():
        listed = hard_cases(sizes)
    else:
        listed = [(f"T={tokens}", tokens, middle_rank(sizes)) for tokens in MODEL_TOKENS]

    definition = definition_name(layer_key)
    return [MoeCase(layer_key, name, uuid_of(definition, name), *rest) for name, *rest in listed]


def tensors(case: MoeCase) -> dict[str, torch.Tensor]:
    """Return what goes into a case's safetensors file."""
    sizes = layer_sizes()[case.layer_key]
    return router_outputs(case, sizes) | stored_scales(case, sizes)


def record(case: MoeCase) -> Trace:
    """Return a case as a FIB workload trace."""
    scalars = {
        "local_expert_offset": case.offset,
        "routed_scaling_factor": layer_sizes()[case.layer_key]["routed_scaling_factor"],
    }
    routing = ("routing_logits", "routing_bias")
    return layer_trace(case, definition_name(case.layer_key), routing, scalars)


def counts(workload: Workload, stored: dict[str, torch.Tensor], layer_key: str) -> Counts | None:
    """Return a workload's counts, or None where it lacks the routing.

    Raises ValueError for logits of another width.
    """
    offset = workload.inputs.get("local_expert_offset")
    if not {"routing_logits", "routing_bias"} <= stored.keys():
        return None
    if offset is None or offset.type != "scalar":
        return None

    sizes = layer_sizes()[layer_key]
    logits = stored["routing_logits"].to(torch.float32).numpy()
    bias = stored["routing_bias"].to(torch.float32).numpy()
    if logits.ndim != 2 or logits.shape[1] != sizes["num_experts"]:
        raise ValueError(f"logits: got shape {logits.shape}, want [T, {sizes['num_experts']}]")

    chosen = routing_model.select(logits, bias, sizes) - int(offset.value)
    return routing_model.local_counts(chosen, sizes)


def bound(seq_len: int, counts: Counts, layer_key: str) -> Bound:
    """Return the roofline bound of a workload with these counts."""
    sizes = layer_sizes()[layer_key]
    routing_bytes = seq_len * sizes["num_experts"] * 4 + sizes["num_experts"] * 2
    return layer_bound(seq_len, counts, routing_bytes, sizes)

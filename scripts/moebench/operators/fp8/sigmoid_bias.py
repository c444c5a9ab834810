"""FP8 block-scale mixture of experts with DeepSeek-V3's routing, as one expert-parallel rank
computes it.

`run` is the reference that every solution is judged against, layers.toml has the sizes it is judged
at. `moebench data --write` writes FIB's JSON of each key, whose `reference` is assembled from the
functions here and in fp8/reference.py and that layer's constants.
"""

import csv

import torch

from moebench.operators.fp8 import swiglu
from moebench.operators.fp8.arguments import DS_ROUTING, inputs
from moebench.operators.fp8.layer import AXES, CONSTRAINTS, Fp8Layer, MoeCase, slice_sentence
from moebench.operators.fp8.reference import dequantize, local_experts
from moebench.operators.layers import (
    Sizes,
    definitions_folder,
    expert_ranks,
    layers_of,
    routed_experts,
)
from moebench.operators.routing.trained_router import raised_alone

# Of the first layer; `reference_source` has every other's. Routing is fixed by the model and cannot
# be read off a tensor's shape.
TOP_K = 8
NUM_GROUPS = 8
KEPT_GROUPS = 4

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


class SigmoidBias(Fp8Layer):
    """The FP8 layer with DeepSeek-V3's router inside."""

    form = "sigmoid-bias"
    routing_inputs = ("routing_logits", "routing_bias")
    router_sizes = ("top_k", "num_groups", "kept_groups")  # constants of `route`
    router_functions = (route,)
    reference_sizes = (*router_sizes, "experts_at_once")
    reference_functions = (dequantize, route, local_experts, run)
    constraints = [*CONSTRAINTS, "num_local_experts <= num_experts"]
    meanings = {"num_experts": "Experts of the whole layer.", **AXES}
    inputs = inputs(DS_ROUTING)

    def layer_sizes(self) -> dict[str, Sizes]:
        return layers_of("sigmoid-bias")

    def name_prefix(self, sizes: Sizes) -> str:
        groups = f"ng{sizes['num_groups']}_kg{sizes['kept_groups']}"
        return f"moe_fp8_block_scale_ds_routing_topk{sizes['top_k']}_{groups}"

    def description(self, sizes: Sizes) -> str:
        return (
            "FP8 block-scale mixture of experts with DeepSeek-V3 routing, as seen by one "
            f"expert-parallel rank of {expert_ranks(sizes)}: route, GEMM1, "
            f"{swiglu.description(sizes)}, GEMM2, weighted sum over the local experts."
            + slice_sentence(sizes)
        )

    def cases(self, key: str) -> list[MoeCase]:
        return public_cases() if key == FIRST else super().cases(key)

    def hard_cases(self, sizes: Sizes) -> list[tuple]:
        """Return name, T, rank's first expert, raised and scales of cases that are easily got
        wrong.
        """
        experts = sizes["num_experts"]
        local = routed_experts(sizes)
        ranks = expert_ranks(sizes)
        first = [ranks * n // 8 * local for n in range(8)]  # experts of ranks, first to last

        # Lowering everybody else closes the other groups, or they would be chosen in spite of one
        # strong expert: a group counts by its best two.
        some = range(first[2], first[2] + local, local // sizes["top_k"])
        takes_all = raised_alone((), experts)
        takes_all |= dict.fromkeys(range(first[4], first[4] + local), -9.0)
        takes_all[first[4] + 3] = 9.0
        none_local = dict.fromkeys(range(first[3], first[3] + local), -9.0)

        return [
            ("one-token", 1, first[1] or local, {}),
            ("no-tokens", 0, 0, {}),
            ("none-local", 5, first[3], none_local),
            ("same-eight-local", 33, first[2], raised_alone(some, experts)),
            ("one-expert-takes-all", 70, first[4], takes_all),
            ("first-rank", 16, 0, {}),
            ("last-rank-odd-length", 37, experts - local, {}),
            ("offset-across-groups", 19, experts * 77 // 256, {}),
            ("harsh-scales", 24, first[5], {}, "harsh"),
            ("harsh-scales-one-token", 1, first[6], {first[6] + 3: 4.0}, "harsh"),
        ]

    def scalars(self, case: MoeCase) -> dict[str, float]:
        sizes = self.layer_sizes()[case.layer_key]
        return super().scalars(case) | {"routed_scaling_factor": sizes["routed_scaling_factor"]}

    def routing_bytes(self, seq_len: int, sizes: Sizes) -> int:
        experts = sizes["num_experts"]
        return seq_len * experts * 4 + experts * 2


def public_cases() -> list[MoeCase]:
    """Return the cases of FIRST whose uuid, tokens and rank the public data set has."""
    file = definitions_folder() / "public_workloads.csv"
    cases = []
    with file.open(encoding="utf-8", newline="") as lines:
        _, *rows = csv.reader(lines)
    for uuid, tokens, offset in rows:
        cases.append(MoeCase(FIRST, f"T={tokens}", uuid, int(tokens), int(offset)))
    return cases

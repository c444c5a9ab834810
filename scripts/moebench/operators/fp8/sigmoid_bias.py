"""The FP8 layer with DeepSeek-V3's router inside, as one expert-parallel rank computes it.

`run` is the reference that every solution is judged against. The `reference` of a definition, which
`moebench data --write` writes, is put together from the functions here and in reference.py, with
the layer's sizes as constants.
"""

import csv
from functools import partial

import torch

from moebench.operators.fp8 import swiglu
from moebench.operators.fp8.arguments import DS_ROUTING, inputs
from moebench.operators.fp8.layer import (
    AXIS_MEANINGS,
    CONSTRAINTS,
    Fp8Layer,
    MoeCase,
    slice_sentence,
)
from moebench.operators.fp8.reference import dequantize, local_experts
from moebench.operators.layers import (
    Layers,
    Sizes,
    definitions_folder,
    expert_ranks,
    layers_of,
    routed_experts,
)
from moebench.operators.routing.trained_router import AddedLogits, logits_choosing

# Those of the first layer: in another layer's definition they have other values. No tensor's shape
# tells them.
TOP_K = 8
NUM_GROUPS = 8
KEPT_GROUPS = 4

# key of the layer whose workloads the public data set has, with other tensors
FIRST = "full"


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
    weights = (
        weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * routed_scaling_factor
    )
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
        x,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
        local,
        weights,
    )


class SigmoidBias(Fp8Layer):
    """The FP8 layer with DeepSeek-V3's router inside."""

    form = "sigmoid-bias"
    prefix = "moe_fp8_block_scale_ds_routing"
    routing_inputs = ("routing_logits", "routing_bias")
    router_sizes = ("top_k", "num_groups", "kept_groups")  # constants of `route`
    router_functions = (route,)
    reference_sizes = (*router_sizes, "experts_at_once")
    reference_functions = (dequantize, route, local_experts, run)
    constraints = [*CONSTRAINTS, "num_local_experts <= num_experts"]
    meanings = {"num_experts": "Experts of the whole layer.", **AXIS_MEANINGS}
    inputs = inputs(DS_ROUTING)

    def layer_sizes(self) -> Layers:
        return layers_of("sigmoid-bias")

    def name_prefix(self, sizes: Sizes) -> str:
        groups = f"ng{sizes['num_groups']}_kg{sizes['kept_groups']}"
        return f"{super().name_prefix(sizes)}_{groups}"

    def description(self, sizes: Sizes) -> str:
        return (
            "FP8 block-scale mixture of experts with DeepSeek-V3 routing, as seen by one "
            f"expert-parallel rank of {expert_ranks(sizes)}: route, GEMM1, "
            f"{swiglu.description(sizes)}, GEMM2, weighted sum over the local experts."
            + slice_sentence(sizes)
        )

    def cases(self, key: str) -> list[MoeCase]:
        return public_cases() if key == FIRST else super().cases(key)

    def hard_cases(self, key: str) -> list[MoeCase]:
        sizes = self.layer_sizes()[key]
        experts = sizes["num_experts"]
        local = routed_experts(sizes)
        ranks = expert_ranks(sizes)
        # offsets of eight ranks, spread over all of them; fewer ranks come several times
        offsets = [ranks * eighth // 8 * local for eighth in range(8)]
        last_offset = experts - local

        none_local = none_of_rank(offsets[3], local)
        same_eight = same_experts(offsets[2], sizes)
        takes_all = one_expert(offsets[4], sizes)
        one_chosen = {offsets[6] + 3: 4.0}

        case = partial(self.new_case, key, added_logits={})
        harsh = partial(case, scales="harsh")
        return [
            case("one-token", 1, offset=offsets[1] or local),
            case("no-tokens", 0, offset=0),
            case("none-local", 5, offset=offsets[3], added_logits=none_local),
            case("same-eight-local", 33, offset=offsets[2], added_logits=same_eight),
            case("one-expert-takes-all", 70, offset=offsets[4], added_logits=takes_all),
            case("first-rank", 16, offset=0),
            case("last-rank-odd-length", 37, offset=last_offset),
            case("offset-across-groups", 19, offset=experts * 77 // 256),
            harsh("harsh-scales", 24, offset=offsets[5]),
            harsh(
                "harsh-scales-one-token", 1, offset=offsets[6], added_logits=one_chosen
            ),
        ]

    def scalars(self, case: MoeCase) -> dict[str, float]:
        sizes = self.layer_sizes()[case.layer_key]
        return super().scalars(case) | {
            "routed_scaling_factor": sizes["routed_scaling_factor"]
        }

    def routing_bytes(self, seq_len: int, sizes: Sizes) -> int:
        experts = sizes["num_experts"]
        return seq_len * experts * 4 + experts * 2


# Logits that are added to experts (MoeCase.added_logits) of the rank that begins at an offset


def none_of_rank(offset: int, num_local_experts: int) -> AddedLogits:
    """Return logits with which no token chooses an expert of a rank."""
    return dict.fromkeys(range(offset, offset + num_local_experts), -9.0)


def same_experts(offset: int, sizes: Sizes) -> AddedLogits:
    """Return logits with which every token chooses the same experts, all of one rank."""
    local = routed_experts(sizes)
    chosen = range(offset, offset + local, local // sizes["top_k"])
    return logits_choosing(chosen, sizes["num_experts"])


def one_expert(offset: int, sizes: Sizes) -> AddedLogits:
    """Return logits with which every token chooses one expert of a rank, and no other of that rank.

    A group counts by its best two, so one strong expert does not open its group. Lowering all
    others closes theirs.
    """
    raised = logits_choosing((), sizes["num_experts"])
    raised |= none_of_rank(offset, routed_experts(sizes))
    raised[offset + 3] = 9.0
    return raised


def public_cases() -> list[MoeCase]:
    """Return the cases of FIRST: with the uuids, tokens and ranks of the public data set."""
    file = definitions_folder() / "public_workloads.csv"
    cases = []
    with file.open(encoding="utf-8", newline="") as lines:
        _, *rows = csv.reader(lines)
    for uuid, tokens, offset in rows:
        cases.append(MoeCase(FIRST, f"T={tokens}", uuid, int(tokens), int(offset)))
    return cases

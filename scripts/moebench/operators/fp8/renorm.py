"""The FP8 layer with softmax routing inside, with all experts on one GPU; Qwen3's, for instance.

The weights of a token's experts are the softmax over their logits alone ("renorm"). Routing and
inputs differ from sigmoid_bias.py: logits are bfloat16, and there are no bias and no offset. `run`
is the reference that every solution is judged against.
"""

from functools import partial

import torch

from moebench.operators.fp8 import swiglu
from moebench.operators.fp8.arguments import RENORM_ROUTING, inputs
from moebench.operators.fp8.layer import Fp8Layer, MoeCase, slice_sentence
from moebench.operators.fp8.reference import dequantize, local_experts
from moebench.operators.layers import Layers, Sizes, cached, has_all_experts, layers_of
from moebench.operators.routing.trained_router import logits_choosing

TOP_K = 8  # the first layer's; in another layer's definition it has another value


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
        x,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
        experts,
        weights,
    )


class Renorm(Fp8Layer):
    """The FP8 layer with a softmax over the chosen logits inside."""

    form = "renorm"
    prefix = "moe_fp8_block_scale_renorm"
    routing_inputs = ("routing_logits",)
    router_sizes = ("top_k",)  # constants of `route`
    router_functions = (route,)
    reference_sizes = (*router_sizes, "experts_at_once")
    reference_functions = (dequantize, route, local_experts, run)
    inputs = inputs(RENORM_ROUTING)

    @cached
    def layer_sizes(self) -> Layers:
        """Return layer key -> sizes of the layers of which one rank has all experts."""
        on_ranks = layers_of("renorm")
        return {key: sizes for key, sizes in on_ranks.items() if has_all_experts(sizes)}

    def description(self, sizes: Sizes) -> str:
        return (
            "FP8 block-scale mixture of experts with softmax over the top-k logits, all experts on "
            f"one GPU: route, GEMM1, {swiglu.description(sizes)}, GEMM2, weighted sum."
            + slice_sentence(sizes)
        )

    def hard_cases(self, key: str) -> list[MoeCase]:
        sizes = self.layer_sizes()[key]
        experts = sizes["num_experts"]
        spread = range(0, experts, experts // sizes["top_k"])

        # one rank has every expert, so its first one is 0
        case = partial(self.new_case, key, offset=0, added_logits={})
        return [
            case("one-token", 1),
            case("no-tokens", 0),
            case("same-experts", 33, added_logits=logits_choosing(spread, experts)),
            case("one-expert-takes-all", 70, added_logits={3: 9.0}),
            case("odd-length", 37),
            case("harsh-scales", 24, scales="harsh"),
            case("harsh-scales-one-token", 1, added_logits={3: 4.0}, scales="harsh"),
        ]

    def scalars(self, case: MoeCase) -> dict[str, float]:
        return {}

    def routing_bytes(self, seq_len: int, sizes: Sizes) -> int:
        return 2 * seq_len * sizes["num_experts"]

"""The layer of sigmoid_bias.py with shared experts, which every token takes beside those that the
router chooses.

They are the last NUM_SHARED_EXPERTS of a rank's weights, as engines lay them out that fuse them,
and the arguments are the same as without them. The router does not know them, and its scaling
factor does not touch them.

Each expert-parallel rank has them whole, and token t takes them on rank t % ranks alone. So the
ranks' outputs add up, as with other experts, and of many tokens each rank multiplies a part. vLLM
does so on ROCm. (With SGLang every rank takes them for every token and weighs them with 1 / ranks:
at 4096 tokens, as many rows again as all experts of a rank have.) A tensor-parallel rank has a
slice of them, as of any expert.
"""

import torch
from flashinfer_bench import Definition

from moebench.operators.fp8 import swiglu
from moebench.operators.fp8.layer import CONSTRAINTS, slice_sentence
from moebench.operators.fp8.reference import dequantize, local_experts
from moebench.operators.fp8.sigmoid_bias import SigmoidBias, route
from moebench.operators.layers import Layers, Sizes, expert_ranks, layers_of

# DeepSeek-V3's; in another layer's definition it has another value
NUM_SHARED_EXPERTS = 1


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
    return local, torch.cat(
        [weights, weights.new_ones(num_tokens, NUM_SHARED_EXPERTS)], dim=1
    )


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
        x,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
        local,
        weights,
    )


class SharedExperts(SigmoidBias):
    """The FP8 layer with DeepSeek-V3's router inside, and shared experts."""

    reference_sizes = (*SigmoidBias.reference_sizes, "num_shared_experts")
    reference_functions = (dequantize, route, local_experts, add_shared_experts, run)
    constraints = [
        *CONSTRAINTS,
        "num_local_experts <= num_experts + num_shared_experts",
    ]
    meanings = SigmoidBias.meanings | {
        "num_local_experts": "Experts that this rank holds, the shared ones behind all others.",
        "num_shared_experts": "Experts that every token takes.",
    }

    def layer_sizes(self) -> Layers:
        return layers_of("sigmoid-bias", shared=True)

    def definition(self, key: str) -> Definition:
        """Return the FIB Definition of a layer key, with a tag of shared experts."""
        definition = super().definition(key)
        shared = self.layer_sizes()[key]["num_shared_experts"]
        definition.tags.append(f"shared_experts:{shared}")
        return definition

    def description(self, sizes: Sizes) -> str:
        ranks = expert_ranks(sizes)
        return (
            "FP8 block-scale mixture of experts with DeepSeek-V3 routing and shared experts, as "
            f"seen by one expert-parallel rank of {ranks}: route, GEMM1, "
            f"{swiglu.description(sizes)}, GEMM2, weighted sum over the local experts. Every "
            "token takes the shared experts with weight 1, which routed_scaling_factor does not "
            f"scale: token t on rank t % {ranks}, as all of {ranks} have them and outputs add up."
            + slice_sentence(sizes)
        )

    def usual_fields(self, sizes: Sizes) -> dict[str, object]:
        # the first rank has shared experts to compute at every number of tokens
        return {"offset": 0}

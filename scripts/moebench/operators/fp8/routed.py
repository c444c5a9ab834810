"""The FP8 layer with top-k given, behind a router: the interface that inference engines have.

The caller passes each token's experts and weights in place of logits, and has tensors laid out as
checkpoints and engines do: GEMM1's rows of `gate` before those of `up`, activation scales row by
row. `run` is the reference that every solution is judged against.

The number of all experts is no axis. An id is local if it is one of `num_local_experts` from
`local_expert_offset` on, and any other costs nothing. So an engine may have more experts than its
model, redundant ones for instance, and mark an empty slot by -1 or by the number of experts.

Most layers here have a form with the router inside, too. Each of that form's workloads then has a
counterpart here with the same tokens, rank and routing, so that times of both can be compared.
Small layers also have cases with ids that no router would choose. A layer without that form is
routed by the router of renorm.py if its model has a softmax, and else by that of sigmoid_bias.py.

Shared experts are like others here: they are the last of a token's slots and of the rank's experts,
and topk_weights has their weights.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from moebench.operators import layers
from moebench.operators.fp8 import swiglu as activations
from moebench.operators.fp8.arguments import ROUTED, inputs
from moebench.operators.fp8.layer import (
    AXIS_MEANINGS,
    SCALE_NAMES,
    Fp8Layer,
    MoeCase,
    append_shared_experts,
    router_outputs,
    slice_sentence,
)
from moebench.operators.fp8.reference import BLOCK, EXPERTS_AT_ONCE, dequantize
from moebench.operators.fp8.renorm import Renorm
from moebench.operators.fp8.shared import SharedExperts
from moebench.operators.fp8.sigmoid_bias import SigmoidBias
from moebench.operators.fp8.swiglu import silu as swiglu
from moebench.operators.layers import Layers, Sizes, cached, expert_ranks
from moebench.operators.operator import Tensors, uuid_of
from moebench.operators.routing import trained_router
from moebench.operators.routing.trained_router import RouterOutputs

ROUTERS_INSIDE = (SigmoidBias(), Renorm(), SharedExperts())
# Small layers without this form: small-renorm is enough for a number of experts that is no multiple
# of 32
NOT_ROUTED = {"small-one-group"}
# Ids that no rank has; from the last two an offset cannot be subtracted without wrapping around
NO_EXPERT = (-1, -(2**31), 2**31 - 1)


@torch.no_grad()
def run(
    hidden_states,
    hidden_states_scale,
    topk_ids,
    topk_weights,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
):
    """Return output [seq_len, hidden_size] bfloat16: the local experts' share of the layer.

    Shapes and dtypes of the arguments are in the definition that carries this source. The offset
    may be a Python number or a tensor of one element. A slot whose expert is not local has a weight
    that is not read.
    """
    num_local_experts, _, intermediate_size = gemm2_weights.shape
    local = topk_ids.to(torch.int64) - int(local_expert_offset)
    x = dequantize(hidden_states, hidden_states_scale, row_block=1)
    output = torch.zeros_like(x)
    for first in range(0, num_local_experts, EXPERTS_AT_ONCE):
        some = slice(first, first + EXPERTS_AT_ONCE)
        gate_up = dequantize(
            gemm1_weights[some], gemm1_weights_scale[some], row_block=BLOCK
        )
        down = dequantize(
            gemm2_weights[some], gemm2_weights_scale[some], row_block=BLOCK
        )
        for at in range(len(down)):
            tokens, slot = torch.nonzero(local == first + at, as_tuple=True)
            if tokens.numel() == 0:
                continue
            gate, up = x[tokens].matmul(gate_up[at].t()).split(intermediate_size, dim=1)
            rows = swiglu(gate, up).matmul(down[at].t())
            output.index_add_(0, tokens, rows * topk_weights[tokens, slot].unsqueeze(1))
    return output.to(torch.bfloat16)


def routed_key(key: str) -> str:
    """Return the key of a layer's form with top-k given. key: the layer's in layers.toml."""
    return f"{'deepseek-v3-ep8' if key == 'full' else key}-routed"


@cached
def router_inside() -> dict[str, str]:
    """Return routed key -> key of the same layer with the router inside, where it has that form."""
    inside = {}
    for form in ROUTERS_INSIDE:
        for key in form.layer_sizes():
            if key not in NOT_ROUTED:
                inside[routed_key(key)] = key
    return inside


@cached
def routers() -> Layers:
    """Return routed key -> the layer's sizes as the router before it has them, groups included."""
    every_layer = layers.layer_sizes()
    sizes_by_key = {}
    for key, sizes in every_layer.items():
        if key not in NOT_ROUTED:
            sizes_by_key[routed_key(key)] = sizes
    return sizes_by_key


def after_routing(sizes: Sizes) -> Sizes:
    """Return a layer's sizes as this form has them: without groups, and with shared experts counted
    as experts of the layer, each in one more slot of every token.
    """
    shared = sizes["num_shared_experts"]
    return sizes | {
        "num_groups": 1,
        "kept_groups": 1,
        "num_experts": sizes["num_experts"] + shared * expert_ranks(sizes),
        "top_k": sizes["top_k"] + shared,
        "num_shared_experts": 0,
    }


def form_inside(key: str) -> Fp8Layer:
    """Return the form with the router inside that has a layer key."""
    return next(form for form in ROUTERS_INSIDE if key in form.layer_sizes())


@dataclass(frozen=True)
class RoutedCase(MoeCase):
    """A case of this form.

    like: the case with the router inside whose counterpart this is; None where there is none. ids:
    "chosen" for ids as the router chooses them, or how they are changed, a key of SPOILT.
    """

    like: MoeCase | None = None
    ids: str = "chosen"


def padded(ids: np.ndarray, weights: np.ndarray, sizes: Sizes) -> None:
    """Pad the batch, as for a CUDA graph: the last tokens have no experts, and any weights."""
    last = slice(len(ids) * 2 // 3, None)
    ids[last] = -1
    weights[last] = np.nan


def without_expert(ids: np.ndarray, weights: np.ndarray, sizes: Sizes) -> None:
    """Leave some slots without an expert: NO_EXPERT or the number of experts is in their place."""
    for at, none in enumerate((*NO_EXPERT, sizes["num_experts"])):
        ids[at::5, at::3] = none
        weights[at::5, at::3] = np.nan


def twice(ids: np.ndarray, weights: np.ndarray, sizes: Sizes) -> None:
    """Give every other token its first expert in the last slot, too, as random ids may."""
    ids[::2, -1] = ids[::2, 0]


# How a small layer's ids are changed in place, beyond what a router chooses
SPOILT = {
    "padded-batch": padded,
    "slots-without-expert": without_expert,
    "experts-twice": twice,
}


class TopKGiven(Fp8Layer):
    """What the two forms with top-k given share: with FP8 weights, and with MXFP4 (mxfp4.py)."""

    routing_inputs = ("topk_ids", "topk_weights")

    def definition_name_of(self, sizes: Sizes) -> str:
        """Return the name of the FIB Definition of a layer.

        sizes: the layer's after routing, or as its router has them.
        """
        return super().definition_name_of(after_routing(sizes))

    def chosen_experts(self, stored: Tensors, sizes: Sizes) -> np.ndarray:
        return stored["topk_ids"].to(torch.int64).numpy()

    def routing_bytes(self, seq_len: int, sizes: Sizes) -> int:
        return seq_len * sizes["top_k"] * (4 + 4)  # ids and weights


class Routed(TopKGiven):
    """The FP8 layer with top-k given."""

    form = "routed"
    prefix = "moe_fp8_block_scale_routed"
    case = RoutedCase
    reference_functions = (dequantize, run)
    meanings = AXIS_MEANINGS | {
        "gemm1_out_size": "GEMM1's output: gate, then up.",
        "top_k": "Experts of a token.",
    }
    inputs = inputs(ROUTED)

    @cached
    def layer_sizes(self) -> Layers:
        return {key: after_routing(sizes) for key, sizes in routers().items()}

    def small(self) -> list[str]:
        """Return the keys of small layers, all of which have a form with the router inside."""
        return [key for key in super().small() if key in router_inside()]

    def description(self, sizes: Sizes) -> str:
        return (
            "FP8 block-scale mixture of experts behind a router, as seen by one expert-parallel "
            "rank: the caller gives each token's experts and weights; GEMM1, "
            f"{activations.description(sizes)}, GEMM2, weighted sum over the local experts. Rows "
            "of gate come first, activation scales are row-major."
            + slice_sentence(sizes)
        )

    def cases(self, key: str) -> list[RoutedCase]:
        if key in self.small() or key not in router_inside():
            return super().cases(key)
        return self.cases_like_inside(key)

    def hard_cases(self, key: str) -> list[RoutedCase]:
        cases = self.cases_like_inside(key)
        (harsh,) = [case.like for case in cases if case.name == "harsh-scales"]
        for name in SPOILT:
            spoilt = self.case_like(key, name, harsh)
            cases.append(replace(spoilt, ids=name, scales="random"))
        return cases

    def cases_like_inside(self, key: str) -> list[RoutedCase]:
        """Return a case like each of the layer's form with the router inside."""
        inside = router_inside()[key]
        likes = form_inside(inside).cases(inside)
        return [self.case_like(key, like.name, like) for like in likes]

    def case_like(self, key: str, name: str, like: MoeCase) -> RoutedCase:
        """Return a case of this name with the tokens, rank, routing and scales of another one."""
        uuid = uuid_of(self.definition_name(key), name)
        tokens = like.seq_len
        return RoutedCase(
            key, name, uuid, tokens, like.offset, scales=like.scales, like=like
        )

    def tensors(self, case: RoutedCase) -> Tensors:
        sizes = routers()[case.layer_key]
        if case.like:
            stored = form_inside(case.like.layer_key).tensors(case.like)
        else:
            stored = router_outputs(case, sizes).as_inputs()

        routed = trained_router.route(RouterOutputs.of_inputs(stored), sizes)
        append_shared_experts(routed, case.offset, sizes, case.uuid)
        if case.ids in SPOILT:
            spoil = SPOILT[case.ids]
            layer = self.layer_sizes()[case.layer_key]
            spoil(routed["topk_ids"].numpy(), routed["topk_weights"].numpy(), layer)

        if case.scales == "harsh":
            for name in SCALE_NAMES:
                routed[name] = stored[name]
            scale = stored["hidden_states_scale"]
            routed["hidden_states_scale"] = scale.t().contiguous()
        return routed

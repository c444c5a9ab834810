"""FP8 block-scale mixture of experts behind a router: the interface that inference engines have.

The caller hands over each token's experts and weights, in place of logits, and holds weights and
scales as checkpoints and engines do: GEMM1's rows of `gate` before those of `up`, activation scales
row by row. `run` is the reference that every solution is judged against. Each key is the layer of
one that moe_fp8_block_scale or its renorm form states with the router inside, or one whose router
neither has.

The number of all experts is no axis, as nothing here hangs on it: an id is local if it is one of
`num_local_experts` that begin at `local_expert_offset`, and any other costs nothing. So an engine
may number more experts than its model has, as with redundant ones, or mark an empty slot with -1 or
with the number of experts.

A workload has the tokens, the rank and the routing of a workload with the router inside, so that
what is measured of both forms can be compared; small layers add what only ids can hold. A layer
without such a form is routed as one of sigmoid and bias would be, or of renorm where that is its
router.
"""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from flashinfer_bench import Definition, Trace, Workload

from moebench.operators import layers, moe_fp8_block_scale, moe_fp8_block_scale_renorm
from moebench.operators import swiglu as activations
from moebench.operators.case import uuid_of
from moebench.operators.definition_parts import const
from moebench.operators.fp8_arguments import ROUTED, inputs, outputs
from moebench.operators.fp8_layer import (
    BLOCK,
    EXPERTS_AT_ONCE,
    dequantize,
    layer_bound,
    self_contained,
    size_suffix,
    slice_of_experts,
    tags,
    without_num_experts,
)
from moebench.operators.fp8_workloads import (
    MODEL_TOKENS,
    SCALE_NAMES,
    MoeCase,
    after_router,
    counts_after_router,
    layer_trace,
    middle_rank,
    router_outputs,
)
from moebench.operators.layers import Sizes, cached
from moebench.operators.roofline import Bound, Counts
from moebench.operators.swiglu import silu as swiglu

NOT_ROUTED = {"small-one-group"}  # experts that are no multiple of 32 are in small-renorm
# Ids that no rank has, far ones too: subtracting an offset may wrap around.
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
        gate_up = dequantize(gemm1_weights[some], gemm1_weights_scale[some], row_block=BLOCK)
        down = dequantize(gemm2_weights[some], gemm2_weights_scale[some], row_block=BLOCK)
        for at in range(len(down)):
            tokens, slot = torch.nonzero(local == first + at, as_tuple=True)
            if tokens.numel() == 0:
                continue
            gate, up = x[tokens].matmul(gate_up[at].t()).split(intermediate_size, dim=1)
            rows = swiglu(gate, up).matmul(down[at].t())
            output.index_add_(0, tokens, rows * topk_weights[tokens, slot].unsqueeze(1))
    return output.to(torch.bfloat16)


def routed_key(key: str) -> str:
    """Return the key of a layer's routed form."""
    return f"{'deepseek-v3-ep8' if key == 'full' else key}-routed"


@cached
def router_inside() -> dict[str, str]:
    """Return key -> the one that states its layer with the router inside, where there is one."""
    keys = [*moe_fp8_block_scale.layer_sizes(), *moe_fp8_block_scale_renorm.layer_sizes()]
    return {routed_key(key): key for key in keys if key not in NOT_ROUTED}


@cached
def routers() -> dict[str, Sizes]:
    """Return key -> its layer's sizes as the router knows them, groups included."""
    inside = layers.layer_sizes("sigmoid-bias", "renorm", "given")
    return {routed_key(key): sizes for key, sizes in inside.items() if key not in NOT_ROUTED}


@cached
def layer_sizes() -> dict[str, Sizes]:
    """Return key -> sizes, of every layer of this form."""
    ungrouped = {"num_groups": 1, "kept_groups": 1}
    return {key: sizes | ungrouped for key, sizes in routers().items()}


def small() -> tuple[str, ...]:
    """Return the keys that are for machines without a GPU."""
    keys = (*moe_fp8_block_scale.small(), *moe_fp8_block_scale_renorm.small())
    return tuple(routed_key(key) for key in keys if key not in NOT_ROUTED)


def definition_name(layer_key: str) -> str:
    """Return the name of the FIB Definition of a key."""
    return name_of(layer_sizes()[layer_key])


def name_of(sizes: Sizes) -> str:
    """Return the name of the FIB Definition of a layer of these sizes."""
    return f"moe_fp8_block_scale_routed_topk{sizes['top_k']}_{size_suffix(sizes)}"


def reference_source(layer_key: str) -> str:
    """Return one self-contained module with `run`, for the `reference` field of the JSON."""
    return self_contained(layer_sizes()[layer_key], ("experts_at_once",), (dequantize, run))


def definition(layer_key: str) -> Definition:
    """Return the FIB Definition of a key."""
    sizes = layer_sizes()[layer_key]
    axes, constraints = without_num_experts(sizes)
    axes["top_k"] = const(sizes["top_k"], "Experts of a token.")
    axes["gemm1_out_size"] = const(2 * sizes["intermediate_size"], "GEMM1's output: gate, then up.")
    return Definition(
        name=definition_name(layer_key),
        op_type="moe",
        description=(
            "FP8 block-scale mixture of experts behind a router, as seen by one expert-parallel "
            "rank: the caller gives each token's experts and weights; GEMM1, "
            f"{activations.description(sizes)}, GEMM2, weighted sum over the local experts. Rows "
            "of gate come first, activation scales are row-major." + slice_of_experts(sizes)
        ),
        tags=tags(layer_key, sizes),
        axes=axes,
        constraints=constraints,
        inputs=inputs(ROUTED),
        outputs=outputs(),
        reference=reference_source(layer_key),
    )


@dataclass(frozen=True)
class RoutedCase(MoeCase):
    """like: the case whose routing this has; None draws its own. ids: "chosen" by that alone, or a
    key of SPOILT.
    """

    like: MoeCase | None = None
    ids: str = "chosen"


def padded(ids: np.ndarray, weights: np.ndarray, sizes: Sizes) -> None:
    """Make a batch for a CUDA graph: the last tokens are none, and their weights are whatever was
    there.
    """
    ids[len(ids) * 2 // 3 :] = -1
    weights[len(ids) * 2 // 3 :] = np.nan


def without_expert(ids: np.ndarray, weights: np.ndarray, sizes: Sizes) -> None:
    """Leave some slots without an expert: each of NO_EXPERT, and the number of experts."""
    for at, none in enumerate((*NO_EXPERT, sizes["num_experts"])):
        ids[at::5, at::3] = none
        weights[at::5, at::3] = np.nan


def twice(ids: np.ndarray, weights: np.ndarray, sizes: Sizes) -> None:
    """Give every other token its first expert in the last slot, too, as random ids of a trial run
    have.
    """
    ids[::2, -1] = ids[::2, 0]


SPOILT = {"padded-batch": padded, "slots-without-expert": without_expert, "experts-twice": twice}


def form_inside(layer_key: str) -> ModuleType:
    """Return the module of a key with the router inside."""
    renorm = layer_key in moe_fp8_block_scale_renorm.layer_sizes()
    return moe_fp8_block_scale_renorm if renorm else moe_fp8_block_scale


def case_like(layer_key: str, name: str, like: MoeCase, ids: str = "chosen") -> RoutedCase:
    """Return a case with the tokens, rank and routing of another one."""
    return RoutedCase(
        layer_key,
        name,
        uuid_of(definition_name(layer_key), name),
        like.seq_len,
        like.offset,
        like.raised,
        scales=like.scales if ids == "chosen" else "random",
        like=like,
        ids=ids,
    )


def cases(layer_key: str) -> list[RoutedCase]:
    """Return the workloads of a key in the order in which they are run."""
    inside = router_inside().get(layer_key)
    if inside is None:
        return cases_of_tokens(layer_key)

    likes = {case.name: case for case in form_inside(inside).cases(inside)}
    all_cases = [case_like(layer_key, name, like) for name, like in likes.items()]
    if layer_key in small():
        all_cases += [case_like(layer_key, name, likes["harsh-scales"], name) for name in SPOILT]
    return all_cases


def cases_of_tokens(layer_key: str) -> list[RoutedCase]:
    """Return the workloads of a layer that has no form with the router inside."""
    definition = definition_name(layer_key)
    offset = middle_rank(layer_sizes()[layer_key])
    all_cases = []
    for tokens in MODEL_TOKENS:
        name = f"T={tokens}"
        all_cases.append(RoutedCase(layer_key, name, uuid_of(definition, name), tokens, offset))
    return all_cases


def tensors(case: RoutedCase) -> dict[str, torch.Tensor]:
    """Return what goes into a case's safetensors file."""
    router_sizes = routers()[case.layer_key]
    if case.like:
        stored = form_inside(case.like.layer_key).tensors(case.like)
    else:
        stored = router_outputs(case, router_sizes)

    routed = after_router(stored, router_sizes)
    if case.ids in SPOILT:
        spoil = SPOILT[case.ids]
        spoil(routed["topk_ids"].numpy(), routed["topk_weights"].numpy(), router_sizes)
    if case.scales == "harsh":
        routed |= {name: stored[name] for name in SCALE_NAMES}
        routed["hidden_states_scale"] = stored["hidden_states_scale"].t().contiguous()
    return routed


def record(case: RoutedCase) -> Trace:
    """Return a case as a FIB workload trace."""
    name = definition_name(case.layer_key)
    scalars = {"local_expert_offset": case.offset}
    return layer_trace(case, name, ("topk_ids", "topk_weights"), scalars)


def counts(workload: Workload, stored: dict[str, torch.Tensor], layer_key: str) -> Counts | None:
    """Return a workload's counts, or None where it lacks the routing."""
    return counts_after_router(workload, stored, layer_sizes()[layer_key])


def bound(seq_len: int, counts: Counts, layer_key: str) -> Bound:
    """Return the roofline bound of a workload with these counts."""
    sizes = layer_sizes()[layer_key]
    return layer_bound(seq_len, counts, routing_bytes(seq_len, sizes), sizes)


def routing_bytes(seq_len: int, sizes: Sizes) -> int:
    """Return the bytes of the ids and weights of so many tokens."""
    return seq_len * sizes["top_k"] * (4 + 4)
